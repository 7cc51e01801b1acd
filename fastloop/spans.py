"""The only clock: nanoseconds, spans around steps, and waiting for the device.

perf_counter is CLOCK_MONOTONIC on Linux and so comparable between processes. Nothing here runs in a
timed window but the two clock reads at its edges; spans belong to the instrumented pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")

now_ns = time.perf_counter_ns
cpu_ns = time.thread_time_ns
"""User and system time of the calling thread."""


def wall_ms() -> int:
    """Milliseconds since 1970, for records that people read; never for a duration."""
    return time.time_ns() // 1_000_000


def seconds_between(start_ns: int, stop_ns: int) -> float:
    """Seconds from start to stop."""
    return (stop_ns - start_ns) / 1e9


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was asked of it; on a CPU nothing is pending."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def mark(device: torch.device) -> Any:
    """A moment for `ms_between`: on CUDA when the current stream gets there, elsewhere now."""
    if device.type != "cuda":
        return now_ns()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def ms_between(start: Any, stop: Any) -> float:
    """Milliseconds between two marks of one device, of whatever streams, which it has reached."""
    return (stop - start) / 1e6 if isinstance(start, int) else start.elapsed_time(stop)


def bandwidth(copy: Callable[[], int], device: torch.device, budget_ns: int) -> float:
    """Bytes a second of an asynchronous copy that returns its bytes, repeated for budget_ns."""
    copy()
    synchronize(device)
    total, start = 0, now_ns()
    while now_ns() - start < budget_ns:
        for _ in range(8):
            total += copy()
        synchronize(device)
    return total / seconds_between(start, now_ns())


@dataclass(frozen=True)
class Steps:
    """When a device began and ended each step, in its own time: it begins when its batch is there.

    A GPU steps while the host is at the next batch already, and a blocking copy waits for the step
    before it: on the host's clock loading and placing would be told for what the step takes.
    """

    device: torch.device
    begun: list[Any] = field(default_factory=list)
    ended: list[Any] = field(default_factory=list)

    def behind(self, place: Callable[[T], R]) -> Callable[[T], R]:
        """The same function; a step begins behind each call."""

        def call(argument: T) -> R:
            result = place(argument)
            self.begun.append(mark(self.device))
            return result

        return call

    def around(self, consume: Callable[[T], Any]) -> Callable[[T], None]:
        """The same function, which calls the one above; the step ends behind each call."""

        def call(argument: T) -> None:
            consume(argument)
            self.ended.append(mark(self.device))

        return call

    def seconds(self) -> float:
        """Of all steps together; the device has to have done them."""
        return sum(map(ms_between, self.begun, self.ended)) / 1e3


@dataclass(frozen=True)
class Spans:
    """Start and stop of everything that was wrapped, by name, in nanoseconds."""

    records: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def each(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """The same items; a span for the wait before each, making the iterator included."""
        spans, start = self.records.setdefault(name, []), now_ns()
        for item in items:
            spans.append((start, now_ns()))
            yield item
            start = now_ns()

    def timed(self, name: str, function: Callable[[T], R]) -> Callable[[T], R]:
        """The same function; a span for each call."""
        spans = self.records.setdefault(name, [])

        def call(argument: T) -> R:
            start = now_ns()
            result = function(argument)
            spans.append((start, now_ns()))
            return result

        return call

    def seconds(self, name: str) -> list[float]:
        """Seconds of each span of that name, in the order in which they ended."""
        return [seconds_between(*span) for span in self.records.get(name, [])]
