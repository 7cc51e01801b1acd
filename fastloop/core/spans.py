"""The only module that reads a clock: nanoseconds, spans, and synchronization with the device.

On Linux perf_counter is CLOCK_MONOTONIC, so its readings are comparable between processes. A timed
window reads only the clock, at its start and its end; spans belong to the instrumented pass.
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
"""Number of times that `unix_offset_ns` reads the clocks; it uses the least interrupted reading."""
now_ns = time.perf_counter_ns
cpu_ns = time.thread_time_ns
"""User and system time of the calling thread."""
process_cpu_ns = time.process_time_ns
"""User and system time of all threads of this process."""


def other_threads_cpu_ns() -> int:
    """User and system time of all threads of this process except the calling one."""
    return time.process_time_ns() - time.thread_time_ns()


class ThreadTime(NamedTuple):
    """Times of a thread in nanoseconds."""

    cpu_ns: int
    delay_ns: int
    """Time in which the thread could run, but waited for a core."""

    @property
    def runnable_ns(self) -> int:
        """Time in which the thread could run, whether it had a core or not."""
        return self.cpu_ns + self.delay_ns

    def since(self, before: ThreadTime) -> ThreadTime:
        """The growth since an earlier reading."""
        return ThreadTime(self.cpu_ns - before.cpu_ns, self.delay_ns - before.delay_ns)


def read_schedule(folder: str) -> ThreadTime:
    """The times of a thread so far.

    folder: the folder of the thread in /proc. Raises OSError if the system does not count these
    times, as only Linux does.
    """
    # Documentation/scheduler/sched-stats.rst of Linux, "/proc/<pid>/schedstat".
    with open(f"{folder}/schedstat", "rb") as file:
        spent_ns, delay_ns, _ = file.read().split()
    return ThreadTime(int(spent_ns), int(delay_ns))


def core_delay_ns() -> int:
    """Nanoseconds so far in which the calling thread could run, but waited for a core, because
    other threads had all cores; 0 if the system does not count them."""
    with suppress(OSError):
        return read_schedule("/proc/thread-self").delay_ns
    return 0


def slowdown_by_load() -> float:
    """Factor by which waiting for a core has slowed down the calling thread so far; 1 if the system
    does not measure that."""
    with suppress(OSError):
        spent = read_schedule("/proc/thread-self")
        return spent.runnable_ns / max(1, spent.cpu_ns)
    return 1.0


def pause(seconds: float) -> None:
    """Let the calling thread sleep for that many seconds."""
    time.sleep(seconds)


def wall_ms() -> int:
    """Milliseconds since 1970, for records that people read; not for durations."""
    return time.time_ns() // 1_000_000


def unix_offset_ns() -> int:
    """Nanoseconds to add to `now_ns` to get the time since 1970, the clock of torch.profiler."""
    offsets = []
    for _ in range(OFFSET_TRIES):
        before_ns = now_ns()
        unix_ns = time.time_ns()
        after_ns = now_ns()
        offsets.append((after_ns - before_ns, unix_ns - (before_ns + after_ns) // 2))
    # This is the offset between the two readings that were closest to each other.
    return min(offsets)[1]


def seconds_between(start_ns: int, stop_ns: int) -> float:
    """Seconds from start to stop."""
    return (stop_ns - start_ns) / 1e9


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work; on a CPU there is none."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    elif device.type == "mps":
        import torch

        torch.mps.synchronize()


def mark(device: torch.device) -> Any:
    """A timestamp for `ms_between`: on CUDA an event in the current stream, elsewhere the clock."""
    if device.type != "cuda":
        return now_ns()
    import torch

    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def ms_between(start: Any, stop: Any) -> float:
    """Milliseconds between two marks of the same device, which must have reached both."""
    return (stop - start) / 1e6 if isinstance(start, int) else start.elapsed_time(stop)


@dataclass(frozen=True)
class StepMarks:
    """Start and stop of each step on the device's clock; a step starts once its batch is placed.

    A GPU runs a step while the host prepares the next batch, and a blocking copy waits for the
    previous step: on the host's clock, a part of the step would count as loading and placing.
    """

    device: torch.device
    starts: list[Any] = field(default_factory=list)
    stops: list[Any] = field(default_factory=list)

    def mark_start_after(self, place: Callable[[T], R]) -> Callable[[T], R]:
        """Wrap the placement: a step starts after each call."""

        def call(argument: T) -> R:
            result = place(argument)
            self.starts.append(mark(self.device))
            return result

        return call

    def mark_stop_after(self, consume: Callable[[T], Any]) -> Callable[[T], None]:
        """Wrap the consumer, which calls the wrapped placement: the step stops after each call."""

        def call(argument: T) -> None:
            consume(argument)
            self.stops.append(mark(self.device))

        return call

    def seconds(self) -> float:
        """Total seconds of all steps, which the device must have finished."""
        return sum(map(ms_between, self.starts, self.stops)) / 1e3


@dataclass(frozen=True)
class Spans:
    """Start and stop, in nanoseconds, of all wrapped waits and calls, by name."""

    records: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def each(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, with a span for the wait before each; the first includes iter()."""
        spans = self.records.setdefault(name, [])
        start = now_ns()
        for item in items:
            spans.append((start, now_ns()))
            yield item
            start = now_ns()

    def time_calls(self, name: str, function: Callable[[T], R]) -> Callable[[T], R]:
        """Wrap a function, with a span for each call."""
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
