"""FailedBatch, an error in place of a batch: the batches after the error are still delivered.

DataLoader does so: next() raises the error of a sample, and the following next() has the following
batch. A program that passes over broken samples relies on it. If a user's code raises
StopIteration, another error takes its place, because a StopIteration would end the epoch as if all
batches had been delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NO_BATCH: Any = object()
"""The value of next(batches, NO_BATCH) at the end of an epoch."""
MOST_NAMED = 8
"""Maximum number of samples that the text of an error names."""


@dataclass(frozen=True, eq=False)
class FailedBatch:
    """An error that the user's code has raised while a batch was made."""

    error: Exception


def try_batch(make: Callable[..., Any], *arguments: Any) -> Any:
    """make(*arguments), or its error in a FailedBatch.

    An exception that ends the program, such as KeyboardInterrupt, is raised.
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
    """The samples' numbers, the first few of many."""
    if len(indices) == 1:
        return f"sample {indices[0]}"
    shown = ", ".join(map(str, indices[:MOST_NAMED]))
    return f"samples {shown}{', ...' if len(indices) > MOST_NAMED else ''}"


def refuse_stop(part: str, indices: Sequence[int]) -> RuntimeError:
    """The error that replaces a StopIteration, which this part of a loader has raised for these
    samples."""
    advice = "next(iterator, None) doesn't raise it"
    return RuntimeError(f"{part} of {describe_samples(indices)} raised StopIteration; {advice}")


@dataclass(frozen=True)
class Unstoppable:
    """A function of a user, such as a collate_fn, in which a StopIteration is an error.

    DataLoader's processes would take it for the end of the iterable that they read.
    """

    function: Callable[[Any], Any]
    name: str

    def __call__(self, argument: Any) -> Any:
        """The function's result; raises RuntimeError in place of StopIteration."""
        try:
            return self.function(argument)
        except StopIteration as error:
            raise RuntimeError(f"{self.name} raised StopIteration") from error
