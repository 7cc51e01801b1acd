"""An epoch with a step on every batch, measured in a loader's own process."""

import statistics
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import torch

from experiments.peers.loaders import dataloader, warm_loader
from experiments.peers.workloads import Workload
from fastloop.core.spans import now_ns, seconds_between

FIRST_WIDTH = 128
"""The layer's width at which its calibration begins."""


class Step:
    """A stand-in for training on a batch: a layer on one thread, applied to a small image, or to
    every 8th row and column of a large one."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        self._every = 8 if shape[-1] > 100 else 1
        side = -(-shape[-1] // self._every)
        self._weights = torch.randn(shape[0] * side * side, width)

    def __call__(self, batch: Any) -> None:
        pixels = batch[0][..., :: self._every, :: self._every].flatten(1).float()
        (pixels @ self._weights).relu_().sum()


@dataclass(frozen=True)
class StepTimes:
    """Milliseconds per batch."""

    whole: float
    waiting: float
    """The part of this time that is spent in next()."""


def calibrate_width(workload: Workload, step_ms: float) -> int:
    """The width of the layer with which a step takes about this time.

    It takes a few iterations, because a part of the step's time does not grow with the width.
    """
    batches, width = resident_batches(workload), FIRST_WIDTH
    torch.set_num_threads(1)
    for _ in range(4):
        step = Step(workload.shape, width)
        took_ms = statistics.median(_measure_ms(step, batch) for batch in batches[:30])
        width = max(1, round(width * step_ms / took_ms))
    return width


def measure_steps(loader: str, workload: Workload, width: int) -> StepTimes:
    """Time an epoch with a step on every batch. If `loader` is empty, the batches are in memory."""
    step = step_of_width(workload, width)
    batches = warm_loader(loader, workload) if loader else resident_batches(workload)
    start = last = now_ns()
    waiting_ns = count = 0
    for batch in batches:
        waiting_ns += now_ns() - last
        step(batch)
        count += 1
        last = now_ns()
    waiting_ns += now_ns() - last
    return StepTimes(1e3 * seconds_between(start, now_ns()) / count, 1e-6 * waiting_ns / count)


@cache
def step_of_width(workload: Workload, width: int) -> Step:
    """The step of this width, on one of torch's threads."""
    torch.set_num_threads(1)
    return Step(workload.shape, width)


@cache
def resident_batches(workload: Workload) -> list[Any]:
    """As many batches in memory as an epoch has: four different ones, repeated."""
    batches = [tuple(leaf.clone() for leaf in batch) for batch in islice(dataloader(workload), 4)]
    num_batches = -(-workload.count // workload.batch_size)
    return [batches[number % len(batches)] for number in range(num_batches)]


def _measure_ms(step: Step, batch: Any) -> float:
    start = now_ns()
    step(batch)
    return 1e3 * seconds_between(start, now_ns())
