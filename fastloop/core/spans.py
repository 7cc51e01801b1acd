"""Read clocks, and record spans of time; no other module reads a clock.

On Linux perf_counter is CLOCK_MONOTONIC, so its readings are comparable between processes. In the
timed window of a trial, the clock is read at the start and at the end only. Spans are recorded in
the instrumented pass, an epoch outside of the timed windows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

# fastloop attach imports this module before it starts the script, so this module does not import
# torch, which takes seconds.

T = TypeVar("T")
R = TypeVar("R")

OFFSET_TRIES = 5
"""Number of times that `unix_offset_ns` reads the clocks; the least interrupted reading counts."""
now_ns = time.perf_counter_ns
"""Nanoseconds since an arbitrary moment, for durations."""
cpu_ns = time.thread_time_ns
"""User and system time of the calling thread, in nanoseconds."""
process_cpu_ns = time.process_time_ns
"""User and system time of all threads of this process, in nanoseconds."""


def other_threads_cpu_ns() -> int:
    """User and system time of this process's other threads, in nanoseconds."""
    return time.process_time_ns() - time.thread_time_ns()


def pause(seconds: float) -> None:
    """Let the calling thread sleep for this number of seconds."""
    time.sleep(seconds)


def wall_ms() -> int:
    """Milliseconds since 1970, for records that people read; not for durations."""
    return time.time_ns() // 1_000_000


def unix_offset_ns() -> int:
    """Nanoseconds to add to `now_ns()` for the time since 1970, which torch.profiler records."""
    offsets = []
    for _ in range(OFFSET_TRIES):
        before_ns = now_ns()
        unix_ns = time.time_ns()
        after_ns = now_ns()
        offsets.append((after_ns - before_ns, unix_ns - (before_ns + after_ns) // 2))
    # The least time from `before_ns` to `after_ns` gives the most precise offset.
    return min(offsets)[1]


def seconds_between(start_ns: int, stop_ns: int) -> float:
    """Seconds from start to stop."""
    return (stop_ns - start_ns) / 1e9


@dataclass(frozen=True)
class Spans:
    """The spans of waits and calls, by name."""

    records: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Name -> (start, stop) of each span, as readings of `now_ns`."""

    def each(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and record the wait for each; the first wait includes iter()."""
        spans = self.records.setdefault(name, [])
        start = now_ns()
        for item in items:
            spans.append((start, now_ns()))
            yield item
            start = now_ns()

    def time_calls(self, name: str, function: Callable[[T], R]) -> Callable[[T], R]:
        """Wrap a function of one argument, so that each call is recorded as a span."""
        spans = self.records.setdefault(name, [])

        def call(argument: T) -> R:
            start = now_ns()
            result = function(argument)
            spans.append((start, now_ns()))
            return result

        return call

    def seconds(self, name: str) -> list[float]:
        """Seconds of each span of that name, in the order in which the spans ended."""
        return [seconds_between(*span) for span in self.records.get(name, [])]
