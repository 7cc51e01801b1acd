"""Time epochs of a rung in one process, with the loop's waits for each batch.

A rung is the job without some of its parts. `ExplainedJob` starts a new process for each call of
`time_rung`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastloop.core import stats
from fastloop.core.benchmark import Session
from fastloop.core.device_time import synchronize
from fastloop.core.move_tensors import map_tensors
from fastloop.core.parts import Part
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import Epochs, Tree
from fastloop.explain.batch_passes import END
from fastloop.explain.job_facts import benchmark_of
from fastloop.explain.rung_loaders import open_rung, take_batches
from fastloop.explain.rungs import rungs_of
from fastloop.trial.job import Job
from fastloop.trial.job_context import JobContext
from fastloop.trial.job_start import start_job
from fastloop.trial.page_cache import set_cache_state
from fastloop.trial.reopenable_loader import ReopenableLoader
from fastloop.trial.window import Consumer, drain, num_repeats

TIMED_SHARES = 3
"""Number of times that a batch is written to shared memory; the median time counts."""


@dataclass(frozen=True, kw_only=True)
class EpochTimes:
    """Times of epochs of one rung in one process; the epochs may be cut to their first batches."""

    seconds: float
    """Mean seconds of an epoch."""
    batches: int
    """Number of batches in each of these epochs."""
    first_wait_s: float
    """Median seconds of the wait for the first batch of an epoch."""
    later_wait_s: float
    """Mean seconds of the wait for any other batch."""
    end_s: float
    """Median seconds from the last step of an epoch until the loop ends, in which workers end."""
    share_s: float = 0.0
    """Seconds to write a ready batch to new shared memory, as workers do; 0: not measured, for
    example because there are no workers."""
    place_s: float | None = None
    """Seconds of an epoch in which batches are placed on the device; None: not measured."""

    @property
    def start_up_s(self) -> float:
        """Seconds of an epoch's start and end: its first wait beyond a later one, and its end."""
        return max(0.0, self.first_wait_s - self.later_wait_s) + self.end_s

    @property
    def next_share(self) -> float:
        """Share of the epoch in the loader's next()."""
        waits_s = self.first_wait_s + (self.batches - 1) * self.later_wait_s + self.end_s
        return waits_s / self.seconds

    def whole_epoch_s(self, batches: int) -> float:
        """Seconds of an epoch with this number of batches, which also starts up only once."""
        pace_s = (self.seconds - self.start_up_s) / self.batches
        return self.seconds + (batches - self.batches) * pace_s


Round = Mapping[Part, EpochTimes]
"""Times of every rung in one round, the lowest rung first."""


@dataclass
class TimedDelivery:
    """A function that delivers batches to the step, with a clock around it."""

    deliver: Consumer
    total_ns: int = 0
    """Nanoseconds of all calls."""

    def __call__(self, batch: Tree) -> Any:
        """Deliver the batch."""
        start_ns = now_ns()
        placed = self.deliver(batch)
        self.total_ns += now_ns() - start_ns
        return placed


def time_rung(job: Job, prepared: PreparedData, rung: Part, number: int) -> EpochTimes:
    """Times of epochs with the work of the rung and of all rungs below it, after a warm-up epoch.

    number: the number of the round, from 0 on.
    """
    context = start_job(job, prepared, number)
    host = take_batches(context)
    session = benchmark_of(job).session(context.build_setup(host[0]))
    # On other devices a copy may run beside the loop, and a clock would not see all of it.
    is_timed = rung is Part.COPY and context.device.type == "cpu"
    with open_rung(context, rung, host) as (loader, deliver):
        consume, _ = session.start(deliver)
        drain(loader.epochs, consume, job.epochs, context.device)
        # Only the last rung, which is the job as it is, may have a cold cache. So its difference
        # from the rung below contains the time of reading.
        if rung is rungs_of(job, prepared)[-1]:
            set_cache_state(job.cache, prepared.files, loader)
        times = _time_window(context, session, loader, deliver, is_timed=is_timed)
    if rung is Part.HAND_OFF and job.loading.num_workers:
        times = replace(times, share_s=_share_seconds(host[0]))
    return times


def _share_seconds(batch: Tree) -> float:
    """Median seconds to write a batch to new shared memory, as a worker does to send it."""
    seconds = []
    for _ in range(TIMED_SHARES):
        # A new copy is made each time, because share_memory_ leaves shared tensors as they are.
        copy = map_tensors(lambda leaf: leaf.cpu().clone(), batch)
        start_ns = now_ns()
        map_tensors(torch.Tensor.share_memory_, copy)
        seconds.append(seconds_between(start_ns, now_ns()))
    return stats.median(seconds)


def _time_window(
    context: JobContext,
    session: Session,
    loader: ReopenableLoader,
    deliver: Consumer,
    *,
    is_timed: bool,
) -> EpochTimes:
    """Times of epochs that together take min_window_s or more; of one if the cache is cold.

    is_timed: a clock runs around each delivery, for EpochTimes.place_s.
    """

    def time_epochs(count: int) -> EpochTimes:
        return _time_epochs(context, session, loader.epochs, deliver, count, is_timed=is_timed)

    # shortest_window_s is zero with a cold cache, because a second epoch would find it warm.
    shortest_s = context.job.shortest_window_s
    times = time_epochs(1)
    needed = num_repeats(times.seconds, shortest_s) if shortest_s else 1
    return time_epochs(needed) if needed > 1 else times


def _time_epochs(
    context: JobContext,
    session: Session,
    epochs: Epochs,
    deliver: Consumer,
    count: int,
    *,
    is_timed: bool,
) -> EpochTimes:
    """Times of the first `count` epochs. is_timed: as in `_time_window`."""
    timed = TimedDelivery(deliver)
    consume, _ = session.start(timed if is_timed else deliver)
    waits: list[list[int]] = []
    synchronize(context.device)
    start_ns = now_ns()
    for number in range(count):
        waits.append(consume_epoch(epochs(number), consume))
    synchronize(context.device)
    times = summarize_epochs(waits, seconds_between(start_ns, now_ns()))
    return replace(times, place_s=timed.total_ns / 1e9 / count) if is_timed else times


def summarize_epochs(waits: Sequence[Sequence[int]], seconds: float) -> EpochTimes:
    """The times of epochs that took `seconds` together.

    waits: for each epoch, the list that `consume_epoch` returned.
    """
    count = len(waits)
    later = [wait_ns for epoch in waits for wait_ns in epoch[1:-1]]
    return EpochTimes(
        seconds=seconds / count,
        batches=math.ceil(sum(len(epoch) - 1 for epoch in waits) / count),
        first_wait_s=stats.median([epoch[0] for epoch in waits]) / 1e9,
        later_wait_s=stats.mean(later) / 1e9 if later else 0.0,
        end_s=stats.median([epoch[-1] for epoch in waits]) / 1e9,
    )


def consume_epoch(batches: Iterable[Tree], consume: Consumer) -> list[int]:
    """Consume an epoch, and return the nanoseconds of each wait: for every batch, then for the end.

    The first wait includes iter().
    """
    waits = []
    asked_ns = now_ns()
    iterator = iter(batches)
    while True:
        batch: Any = next(iterator, END)
        waits.append(now_ns() - asked_ns)
        if batch is END:
            return waits
        consume(batch)
        asked_ns = now_ns()
