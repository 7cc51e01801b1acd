"""StopIteration out of a user's code, which would end an epoch as if it were whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_NAMED = 8


def describe_samples(indices: Sequence[int]) -> str:
    """The samples' numbers, the first few of many."""
    if len(indices) == 1:
        return f"sample {indices[0]}"
    shown = ", ".join(map(str, indices[:MOST_NAMED]))
    return f"samples {shown}{', ...' if len(indices) > MOST_NAMED else ''}"


def refuse_stop(part: str, indices: Sequence[int]) -> RuntimeError:
    """The error that replaces a StopIteration in this part of the making of these samples."""
    advice = "next(iterator, None) raises none"
    return RuntimeError(f"{part} of {describe_samples(indices)} raised StopIteration; {advice}")


@dataclass(frozen=True)
class Unstoppable:
    """A function of a user, such as a collate_fn, in which a StopIteration is an error.

    DataLoader's processes would take it for the end of the iterable that they read.
    """

    function: Callable[[Any], Any]
    name: str

    def __call__(self, argument: Any) -> Any:
        """The function's result; raises RuntimeError in the place of StopIteration."""
        try:
            return self.function(argument)
        except StopIteration as error:
            raise RuntimeError(f"{self.name} raised StopIteration") from error
