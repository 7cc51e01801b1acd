"""Time single batches of a job's loader in one process: the load and the step of each batch.

The model of a loader predicts from these times. `ExplainedJob` starts a new process for each call
of `time_batches`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastloop.core import stats
from fastloop.core.device_time import synchronize
from fastloop.core.move_tensors import map_tensors
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns, process_cpu_ns, seconds_between
from fastloop.core.thread_times import core_delay_ns
from fastloop.core.types import Epochs, Tree
from fastloop.explain.job_facts import benchmark_of
from fastloop.trial.job import Job
from fastloop.trial.job_context import JobContext
from fastloop.trial.job_start import start_job
from fastloop.trial.window import Consumer

END = object()
"""Marks the end of an epoch. None can't mark it: a batch may be None, for example from a collate_fn
that leaves out broken samples."""
MOST_TIMED = 200
"""Maximum number of batches that are timed."""
TIMED_S = 2.0
"""Seconds of an epoch after which no further batch is timed, once FEWEST_TIMED have been timed."""
FEWEST_TIMED = 3
"""Minimum number of batches that are timed, however long each takes, if so many are left of the
epoch after the warm-up."""
WARM_UP_S, LEAST_TIMED_S = 0.1, 0.2
"""Seconds of the untimed warm-up, and of the timing after it. Without workers, short epochs are
repeated until LEAST_TIMED_S have passed or MOST_TIMED batches are timed."""
TIMED_CLONES = 5
"""Number of copies of a batch that are timed; the shortest time counts."""


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Times of loading and of stepping; each list has a value for each timed batch."""

    load_s: list[float] = field(default_factory=list)
    """Seconds of loading each batch."""
    load_cpu_s: list[float] = field(default_factory=list)
    """CPU seconds that this process used while each batch was loaded."""
    load_delay_s: list[float] = field(default_factory=list)
    """Seconds of loading each batch in which this thread waited for a core; 0 if the system counts
    no such waits."""
    step_s: list[float] = field(default_factory=list)
    """Seconds of the step on each batch."""
    step_cpu_s: list[float] = field(default_factory=list)
    """CPU seconds that this process used during the step on each batch."""
    first_batch_s: float = 0.0
    """Seconds from opening the loader to its first batch on the device."""
    clone_s: float = 0.0
    """Seconds to copy a batch in memory."""
    torch_threads: int = 1
    """Number of torch's threads in this process."""
    difference: float = 0.0
    """Difference of two passes: the absolute logarithm of the ratio of their mean seconds per
    batch. 0 if the times are from one pass."""

    @property
    def load_cpu_share(self) -> float:
        """CPU time of loading the batches, as a share of the time that loading takes.

        That time excludes waits for a core. With them, loading that only computes would seem to
        wait for a disk on a busy machine.
        """
        seconds = sum(self.load_s) - sum(self.load_delay_s)
        return min(1.0, sum(self.load_cpu_s) / seconds) if seconds > 0 else 1.0


def time_batches(job: Job, prepared: PreparedData) -> BatchTimes:
    """The times of loading and of stepping each batch, with the job's loader unchanged."""
    context = start_job(job, prepared, 0)
    opened_ns = now_ns()
    with context.open_loader() as loader:
        batches = iter(loader.epochs(job.epochs))
        first = next(batches)
        deliver = context.step_delivery()
        deliver(first)
        synchronize(context.device)
        times = BatchTimes(
            first_batch_s=seconds_between(opened_ns, now_ns()),
            clone_s=_clone_seconds(first),
            torch_threads=torch.get_num_threads(),
        )
        consume, _ = benchmark_of(job).session(context.build_setup(first)).start(deliver)
        # The first step is slower, because it allocates or compiles.
        consume(first)
        _warm_up(batches, consume)
        _record_epochs(times, batches, loader.epochs, consume, context)
    return times


def merge_batches(one: BatchTimes, other: BatchTimes) -> BatchTimes:
    """The times of two passes of the same job together, with the difference of the passes.

    The time of the first batch and the number of threads are taken from `one`.
    """
    seconds = [stats.mean(each.load_s) + stats.mean(each.step_s) for each in (one, other)]
    return replace(
        one,
        load_s=one.load_s + other.load_s,
        load_cpu_s=one.load_cpu_s + other.load_cpu_s,
        load_delay_s=one.load_delay_s + other.load_delay_s,
        step_s=one.step_s + other.step_s,
        step_cpu_s=one.step_cpu_s + other.step_cpu_s,
        clone_s=min(one.clone_s, other.clone_s),
        difference=abs(math.log(seconds[0] / seconds[1])),
    )


def _clone_seconds(batch: Tree) -> float:
    """Seconds to copy the batch in memory."""
    # The least of a few copies: the first one also maps new memory.
    seconds = []
    for _ in range(TIMED_CLONES):
        start_ns = now_ns()
        map_tensors(torch.clone, batch)
        seconds.append(seconds_between(start_ns, now_ns()))
    return min(seconds)


def _warm_up(batches: Iterator[Tree], consume: Consumer) -> None:
    """Consume batches for WARM_UP_S, or until the epoch ends."""
    # In a new process, the caches and the clock rate of a core take a while to reach their usual
    # state.
    start_ns = now_ns()
    while seconds_between(start_ns, now_ns()) < WARM_UP_S:
        batch: Any = next(batches, END)
        if batch is END:
            return
        consume(batch)


def _record_epochs(
    times: BatchTimes,
    batches: Iterator[Tree],
    epochs: Epochs,
    consume: Consumer,
    context: JobContext,
) -> None:
    """Append the times of the batches that the warm-up has left, and of further epochs if the epoch
    is short.

    batches: the rest of the epoch of the warm-up. epochs: function from an epoch's number to its
    batches.
    """
    begun_ns = now_ns()
    _record(times, batches, consume, context)
    # If the epoch is short, the warm-up may have taken all of its batches.
    if not times.load_s:
        _record(times, iter(epochs(0)), consume, context)
    # A few milliseconds are too short to measure, so a short epoch is repeated, unless that would
    # start workers again.
    while not context.job.loading.num_workers and _is_short(times, begun_ns):
        batches = iter(epochs(0))
        # The first batch of an epoch also waits for the epoch's order.
        consume(next(batches))
        before = len(times.load_s)
        _record(times, batches, consume, context)
        # An epoch of a single batch would be repeated for nothing.
        if len(times.load_s) == before:
            return


def _record(
    times: BatchTimes, batches: Iterator[Tree], consume: Consumer, context: JobContext
) -> None:
    """Append the times of batches until MOST_TIMED, TIMED_S or the end of the epoch is reached."""
    begun_ns = now_ns()
    while len(times.load_s) < MOST_TIMED:
        start_delay_ns = core_delay_ns()
        start_ns, start_cpu_ns = now_ns(), process_cpu_ns()
        batch: Any = next(batches, END)
        if batch is END:
            return
        loaded_ns, loaded_cpu_ns = now_ns(), process_cpu_ns()
        delay_ns = core_delay_ns() - start_delay_ns
        ready_ns, ready_cpu_ns = now_ns(), process_cpu_ns()
        consume(batch)
        synchronize(context.device)
        stop_ns, stop_cpu_ns = now_ns(), process_cpu_ns()
        times.load_s.append(seconds_between(start_ns, loaded_ns))
        times.load_cpu_s.append(seconds_between(start_cpu_ns, loaded_cpu_ns))
        times.load_delay_s.append(delay_ns / 1e9)
        times.step_s.append(seconds_between(ready_ns, stop_ns))
        times.step_cpu_s.append(seconds_between(ready_cpu_ns, stop_cpu_ns))
        if seconds_between(begun_ns, stop_ns) > TIMED_S and len(times.load_s) >= FEWEST_TIMED:
            return


def _is_short(times: BatchTimes, begun_ns: int) -> bool:
    """True if fewer than MOST_TIMED batches are timed, and LEAST_TIMED_S have not passed.

    begun_ns: start of the timing, by the clock of `now_ns`.
    """
    return len(times.load_s) < MOST_TIMED and seconds_between(begun_ns, now_ns()) < LEAST_TIMED_S
