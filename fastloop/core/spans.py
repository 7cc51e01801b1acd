"""Clocks, spans of time, and synchronization with the device; no other module reads a clock.

On Linux perf_counter is CLOCK_MONOTONIC, so its readings are comparable between processes. The
timed window of a trial only reads the clock at its start and its end. Spans are recorded in the
instrumented pass, an epoch outside of trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

# Reading a clock must not import torch, which takes seconds: fastloop attach starts the script
# without it. A device can only be a CUDA device once torch is imported.
if TYPE_CHECKING:
    import torch

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


class ThreadTime(NamedTuple):
    """Times of a thread in nanoseconds."""

    cpu_ns: int
    """Time in which the thread had a core."""
    delay_ns: int
    """Time in which the thread could run, but waited for a core."""

    @property
    def runnable_ns(self) -> int:
        """Time in which the thread could run, whether it had a core or not."""
        return self.cpu_ns + self.delay_ns

    def since(self, before: ThreadTime) -> ThreadTime:
        """The times that have passed since an earlier reading."""
        return ThreadTime(self.cpu_ns - before.cpu_ns, self.delay_ns - before.delay_ns)


def read_schedule(folder: str) -> ThreadTime:
    """The times of a thread since its start.

    folder: the folder of the thread in /proc. Raises OSError if the system does not count these
    times; only Linux counts them.
    """
    # Documentation/scheduler/sched-stats.rst of Linux, "/proc/<pid>/schedstat".
    with open(f"{folder}/schedstat", "rb") as file:
        spent_ns, delay_ns, _ = file.read().split()
    return ThreadTime(int(spent_ns), int(delay_ns))


def core_delay_ns() -> int:
    """Nanoseconds for which the calling thread has waited for a core since its start.

    Returns 0 if the system does not count them.
    """
    with suppress(OSError):
        return read_schedule("/proc/thread-self").delay_ns
    return 0


def slowdown_by_load() -> float:
    """Factor by which waiting for a core has slowed down the calling thread since its start.

    Returns 1 if the system does not count the time of waiting.
    """
    with suppress(OSError):
        spent = read_schedule("/proc/thread-self")
        return spent.runnable_ns / max(1, spent.cpu_ns)
    return 1.0


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


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work; a CPU has no queued work."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    elif device.type == "mps":
        import torch

        torch.mps.synchronize()


def mark(device: torch.device) -> Any:
    """A mark for `ms_between`: on CUDA an event in the current stream, else the clock's reading."""
    if device.type != "cuda":
        return now_ns()
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def ms_between(start: Any, stop: Any) -> float:
    """Milliseconds between two marks of the same device; the device must have reached both."""
    return (stop - start) / 1e6 if isinstance(start, int) else start.elapsed_time(stop)


@dataclass(frozen=True)
class StepMarks:
    """Marks on the device's clock of the start and the stop of each step.

    A step starts once its batch is on the device. A GPU runs a step while the host prepares the
    next batch, and a blocking copy waits for the previous step. On the host's clock, a part of the
    step would therefore count as loading and placing.
    """

    device: torch.device
    starts: list[Any] = field(default_factory=list)
    """The mark at the start of each step."""
    stops: list[Any] = field(default_factory=list)
    """The mark at the stop of each step."""

    def mark_start_after(self, place: Callable[[T], R]) -> Callable[[T], R]:
        """Wrap the function that places a batch on the device: a step starts after each call."""

        def call(argument: T) -> R:
            result = place(argument)
            self.starts.append(mark(self.device))
            return result

        return call

    def mark_stop_after(self, consume: Callable[[T], Any]) -> Callable[[T], None]:
        """Wrap the function that places a batch and runs its step: a step stops after each call."""

        def call(argument: T) -> None:
            consume(argument)
            self.stops.append(mark(self.device))

        return call

    def seconds(self) -> float:
        """Total seconds of all steps, which the device must have finished."""
        return sum(map(ms_between, self.starts, self.stops)) / 1e3


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
