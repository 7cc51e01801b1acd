"""FailedBatch, an error in place of a batch: the batches after the error are still delivered.

DataLoader delivers batches in the same way: next() raises the error of a sample, and the following
next() returns the following batch. A program that passes over broken samples relies on that. A
StopIteration of the user's code is replaced by a RuntimeError, because the StopIteration would end
the epoch as if all batches had been delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NO_BATCH: Any = object()
"""The value that next(batches, NO_BATCH) returns at the end of an epoch."""
MOST_NAMED = 8
"""Maximum number of samples that the text of an error names."""


@dataclass(frozen=True, eq=False)
class FailedBatch:
    """An error that the user's code has raised while a batch was made."""

    error: Exception
    """The error to raise in place of the batch."""


def try_batch(make: Callable[..., Any], *arguments: Any) -> Any:
    """The result of make(*arguments), or a FailedBatch with the error that the call has raised.

    An exception that ends the program, such as KeyboardInterrupt, is not caught.
    """
    try:
        return make(*arguments)
    # A StopIteration would end the loop as if there were no more batches.
    except StopIteration as error:
        failure = RuntimeError("the making of a batch raised StopIteration")
        failure.__cause__ = error
        return FailedBatch(failure)
    except Exception as error:
        return FailedBatch(error)


def describe_samples(indices: Sequence[int]) -> str:
    """Text with the numbers of the samples; only the first MOST_NAMED of many are named."""
    if len(indices) == 1:
        return f"sample {indices[0]}"
    shown = ", ".join(map(str, indices[:MOST_NAMED]))
    return f"samples {shown}{', ...' if len(indices) > MOST_NAMED else ''}"


def refuse_stop(part: str, indices: Sequence[int]) -> RuntimeError:
    """The error that replaces a StopIteration of the user's code.

    part: the part of the loader that raised the StopIteration, such as "the collate_fn". indices:
    the numbers of the samples.
    """
    advice = "next(iterator, None) doesn't raise it"
    return RuntimeError(f"{part} of {describe_samples(indices)} raised StopIteration; {advice}")


@dataclass(frozen=True)
class Unstoppable:
    """A function of the user, such as a collate_fn, that raises RuntimeError, never StopIteration.

    A worker of DataLoader would take a StopIteration for the end of the iterable that it reads.
    """

    function: Callable[[Any], Any]
    name: str
    """Name of the function in the error's text, such as "the collate_fn"."""

    def __call__(self, argument: Any) -> Any:
        """The function's result; raises RuntimeError in place of StopIteration."""
        try:
            return self.function(argument)
        except StopIteration as error:
            raise RuntimeError(f"{self.name} raised StopIteration") from error
