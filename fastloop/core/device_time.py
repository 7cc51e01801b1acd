"""Wait for the work of a device, and time steps as the device runs them.

No other module synchronizes with a device, or makes timing events of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from fastloop.core.spans import now_ns

T = TypeVar("T")
R = TypeVar("R")


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work; a CPU has no queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def mark(device: torch.device) -> Any:
    """A mark for `ms_between`: on CUDA an event in the current stream, else the host's clock."""
    if device.type != "cuda":
        return now_ns()
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
