"""Limits on time: a deadline that work asks about, and an end of work that makes no progress."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from fastloop.core.spans import now_ns, seconds_between

T = TypeVar("T")

SHORTEST_S = 0.05
"""Limits below this many seconds are raised to it: with alarms that follow each other at once, the
interrupted code could not even unwind."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """The time by which work has to end.

    Nothing is interrupted: code that works asks before each measurement, and returns early.
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
    """The deadline so many seconds after a time, by default from now on; None: no deadline."""
    if seconds is None:
        return Deadline()
    return Deadline(end_ns=(now_ns() if begun_ns is None else begun_ns) + 1e9 * seconds)


@dataclass(kw_only=True)
class TimedPasses:
    """Runs passes, and knows by the longest one so far whether there is time for another one."""

    deadline: Deadline
    longest_s: float

    def have_time(self) -> bool:
        """True if a pass as long as the longest one would end in time."""
        return self.deadline.has_room(self.longest_s)

    def run(self, run_pass: Callable[[], T]) -> T:
        """The result of the pass."""
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


def within(items: Iterable[T], seconds: float | None) -> Iterator[T]:
    """Yield the items until `seconds` have passed since the first, which is always yielded.

    seconds: None: yield all items. An item, once yielded, may take any time.
    """
    deadline = deadline_after(seconds)
    for item in items:
        yield item
        if deadline.remaining_s <= 0:
            return


# It is a BaseException, so that the user's `except Exception` does not swallow it.
class Stalled(BaseException):
    """No progress within the limit; the message names the line at which the work hangs."""


@contextmanager
def limit_stalls(limit_s: float) -> Iterator[None]:
    """Raise Stalled inside the context if note_progress is not called for that many seconds.

    Only in the main thread; in any other thread there is no limit.
    """
    # Python runs handlers of signals in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_stalled(_: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown place"
        raise Stalled(f"no progress within {limit_s:g} s: {where}")

    before = signal.signal(signal.SIGALRM, raise_stalled)
    # The timer goes on at that interval: code that catches the first Stalled, or that loses it in
    # a __del__ or a callback from C, gets another one.
    timer_s = max(limit_s, SHORTEST_S)
    signal.setitimer(signal.ITIMER_REAL, timer_s, timer_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def note_progress() -> None:
    """Start the limit again; does nothing without a limit. Takes about a microsecond."""
    # The interval of the running timer is the limit, and 0 if no timer runs.
    _, limit_s = signal.getitimer(signal.ITIMER_REAL)
    if limit_s:
        signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
