"""Measure a job in one process: `time_rung` times epochs of a rung, `time_batches` single batches.

A rung is the job without some of its parts. `ExplainedJob` starts a new process for each call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastloop.core import stats
from fastloop.core.benchmark import Benchmark, Session
from fastloop.core.move_tensors import map_tensors
from fastloop.core.parts import Part
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import core_delay_ns, now_ns, process_cpu_ns, seconds_between, synchronize
from fastloop.core.types import Epochs, Tree
from fastloop.explain.rung_loaders import open_rung, share_seconds, take_batches
from fastloop.explain.rungs import benchmark_name, rungs_of
from fastloop.trial.job import Job
from fastloop.trial.job_context import JobContext
from fastloop.trial.job_start import start_job
from fastloop.trial.page_cache import ReopenableLoader, set_cache_state
from fastloop.trial.window import Consumer, drain, num_repeats

MOST_TIMED = 200
TIMED_S = 2.0
FEWEST_TIMED = 3
"""At most MOST_TIMED batches are timed one by one. After TIMED_S no further batch is timed, unless
there are fewer than FEWEST_TIMED."""
WARM_UP_S, LEAST_TIMED_S = 0.1, 0.2
"""Seconds during which batches run untimed, and seconds during which they are then timed. Short
epochs are repeated until LEAST_TIMED_S is reached."""
TIMED_CLONES = 5
"""Number of copies of a batch that are timed; the shortest time counts."""
END = object()
"""Marks the end of an epoch. None can't mark it: a batch may be None, for example from a collate_fn
that leaves out broken samples."""


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


@dataclass(frozen=True, kw_only=True)
class BatchTimes:
    """Times of loading and of stepping, for each batch: seconds and CPU seconds of this process."""

    load_s: list[float] = field(default_factory=list)
    load_cpu_s: list[float] = field(default_factory=list)
    load_delay_s: list[float] = field(default_factory=list)
    """Seconds of loading each batch in which this thread waited for a core."""
    step_s: list[float] = field(default_factory=list)
    step_cpu_s: list[float] = field(default_factory=list)
    first_batch_s: float = 0.0
    """Seconds from opening the loader to its first batch on the device."""
    clone_s: float = 0.0
    """Seconds to copy a batch in memory."""
    torch_threads: int = 1
    difference: float = 0.0
    """Absolute logarithm of the ratio of two passes' mean seconds per batch, if the times are from
    two passes; 0: there was one pass."""

    @property
    def load_cpu_share(self) -> float:
        """CPU time of loading the batches, as a share of the time that loading takes.

        That time excludes waits for a core. With them, loading that only computes would seem to
        wait for a disk on a busy machine.
        """
        seconds = sum(self.load_s) - sum(self.load_delay_s)
        return min(1.0, sum(self.load_cpu_s) / seconds) if seconds > 0 else 1.0


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
        times = replace(times, share_s=share_seconds(host[0]))
    return times


def time_batches(job: Job, prepared: PreparedData) -> BatchTimes:
    """Times of loading and stepping, one batch at a time, of the job's loader as it is."""
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
        session = benchmark_of(job).session(context.build_setup(first))
        consume, _ = session.start(deliver)
        # The first step is slower, because it allocates or compiles.
        consume(first)
        batches = _warm_up(batches, consume)
        begun_ns = now_ns()
        _record(times, batches, consume, context)
        # The warm-up took all batches of a short epoch.
        if not times.load_s:
            _record(times, iter(loader.epochs(0)), consume, context)
        # A few milliseconds are too short to measure, so a short epoch is repeated, unless that
        # would start workers again.
        while not job.loading.num_workers and _is_short(times, begun_ns):
            batches = iter(loader.epochs(0))
            # The first batch of an epoch also waits for the epoch's order.
            consume(next(batches))
            before = len(times.load_s)
            _record(times, batches, consume, context)
            # An epoch of a single batch would be repeated for nothing.
            if len(times.load_s) == before:
                break
    return times


def merge_batches(one: BatchTimes, other: BatchTimes) -> BatchTimes:
    """The batches of two passes of the same job, and the difference of the passes."""
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


def _warm_up(batches: Iterator[Tree], consume: Consumer) -> Iterator[Tree]:
    """Consume batches for WARM_UP_S, and return the rest."""
    # In a new process, the caches and the clock rate of a core take a while to reach their usual
    # state.
    start_ns = now_ns()
    while seconds_between(start_ns, now_ns()) < WARM_UP_S:
        batch = next(batches, None)
        if batch is None:
            break
        consume(batch)
    return batches


def _is_short(times: BatchTimes, begun_ns: int) -> bool:
    return len(times.load_s) < MOST_TIMED and seconds_between(begun_ns, now_ns()) < LEAST_TIMED_S


def benchmark_of(job: Job) -> Benchmark:
    """The benchmark that is explained."""
    return job.benchmark[benchmark_name(job)]


def _clone_seconds(batch: Tree) -> float:
    """Seconds to copy the batch in memory."""
    # The least of a few copies: the first one also maps new memory.
    seconds = []
    for _ in range(TIMED_CLONES):
        start_ns = now_ns()
        map_tensors(torch.clone, batch)
        seconds.append(seconds_between(start_ns, now_ns()))
    return min(seconds)


def _record(
    times: BatchTimes, batches: Iterator[Tree], consume: Consumer, context: JobContext
) -> None:
    """Append the times of batches until MOST_TIMED, TIMED_S or the end of the epoch is reached."""
    begun_ns = now_ns()
    while len(times.load_s) < MOST_TIMED:
        start_delay_ns = core_delay_ns()
        start_ns, start_cpu_ns = now_ns(), process_cpu_ns()
        batch = next(batches, None)
        if batch is None:
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
