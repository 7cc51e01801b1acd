"""Time limits that code checks by itself: nothing is interrupted, see stall_limit.py for that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastloop.core.spans import now_ns, seconds_between

T = TypeVar("T")

OVERTIME = 2
"""`within` may take up to this many times its `seconds` to yield its `fewest` items."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """The time by which work has to end.

    Nothing is interrupted: the working code checks the deadline before each measurement, and
    returns early.
    """

    end_ns: float = math.inf
    """The time of the deadline by the clock of `now_ns`; infinite: there is no deadline."""

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; negative if it has passed."""
        return (self.end_ns - now_ns()) / 1e9

    @property
    def is_over(self) -> bool:
        """True once the deadline has passed."""
        return self.remaining_s < 0

    def has_room(self, seconds: float) -> bool:
        """True if work that takes this long would end in time."""
        return seconds <= self.remaining_s


def deadline_after(seconds: float | None, begun_ns: int | None = None) -> Deadline:
    """The deadline this many seconds after a time, by default after now; None: no deadline."""
    if seconds is None:
        return Deadline()
    return Deadline(end_ns=(now_ns() if begun_ns is None else begun_ns) + 1e9 * seconds)


@dataclass(kw_only=True)
class TimedPasses:
    """Runs passes until a deadline. Another pass is expected to take as long as the longest one so
    far."""

    deadline: Deadline
    longest_s: float
    """Seconds of the longest pass so far."""

    def have_time(self) -> bool:
        """True if a pass as long as the longest one would end in time."""
        return self.deadline.has_room(self.longest_s)

    def run(self, run_pass: Callable[[], T]) -> T:
        """Run the pass, and return its result."""
        begun_ns = now_ns()
        result = run_pass()
        self.longest_s = max(self.longest_s, seconds_between(begun_ns, now_ns()))
        return result

    def run_all(self, wanted: Sequence[Callable[[], T]]) -> list[T] | None:
        """The results of all these passes; None if there is no time for one of them."""
        results = []
        for run_pass in wanted:
            if not self.have_time():
                return None
            results.append(self.run(run_pass))
        return results


def within(items: Iterable[T], seconds: float | None, fewest: int = 1) -> Iterator[T]:
    """Yield items until `seconds` have passed since the start; the first item is always yielded.

    seconds: None: yield all items. fewest: until this many items have been yielded, the limit is
    OVERTIME times `seconds`. The time is read after each item, so the last one may exceed it.
    """
    start_ns = now_ns()
    for number, item in enumerate(items, start=1):
        yield item
        if seconds is None:
            continue
        limit_s = seconds if number >= fewest else OVERTIME * seconds
        if seconds_between(start_ns, now_ns()) >= limit_s:
            return
