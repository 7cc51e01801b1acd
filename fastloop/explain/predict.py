"""Predict the seconds of an epoch of a changed job, by the model of a loader (model.py).

The model's input is `Measured`: times of single batches, and of their way from workers to the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fastloop.core import stats
from fastloop.core.cgroup import available_cores
from fastloop.explain.batch_passes import BatchTimes
from fastloop.explain.model import MOST_SIMULATED, Machinery, Phase, epoch_seconds
from fastloop.explain.rung_passes import EpochTimes
from fastloop.trial.job import Job

FASTLOADER_AHEAD = 2
"""Number of batches that each thread of FastLoader makes ahead, unless batches are large. The
native core limits bytes instead; the model assumes the same number for it."""
MOST_BEGINNINGS = 8
"""Maximum number of different first batches from which a short epoch is simulated."""


class HandOff(NamedTuple):
    """Times of two passes of a round; their difference is the cost of handing batches over."""

    from_workers: EpochTimes
    """Times of the pass in which workers send ready batches to the loop."""
    in_loop: EpochTimes
    """Times of the pass in which the loop itself has the ready batches."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements of a job from which the model predicts its epochs after a change."""

    batches: int
    """Number of batches in a whole epoch."""
    own_threads: BatchTimes
    """Times of single batches with the job's own number of torch's threads. There are no workers,
    unless the loader needs them."""
    one_thread: BatchTimes
    """As `own_threads`, but with torch_threads=1, as in a worker."""
    hand_off: Mapping[int, Sequence[HandOff]]
    """Number of workers -> the measured hand-off of each round."""
    kept: float
    """Share of the work of loading that remains if samples come from a store."""
    decode_share: float = 0.0
    """Share of the work of loading that is decoding."""
    transform_share: float = 0.0
    """Share of the work of loading that is transforming samples."""
    decoders: Mapping[str, float] = field(default_factory=dict)
    """Name of another decoder -> its time for an image, relative to the present decoder's time."""
    batch_transform_s: float | None = None
    """Seconds to transform a whole batch on the device; None: no transform takes a whole batch."""

    def with_threads_of(self, job: Job) -> BatchTimes:
        """Times of single batches with one thread of torch if the job has one; else `own_threads`.

        job: the job as it is or after a change.
        """
        return self.one_thread if job.torch_threads == 1 else self.own_threads


def predict_seconds(
    job: Job,
    measured: Measured,
    kept: float = 1.0,
    added_step_s: float = 0.0,
    cores: float | None = None,
) -> float:
    """Seconds of a whole epoch by the model, without a correction by the job's measured epochs.

    kept: share of the measured work of loading that remains. added_step_s: seconds by which each
    step takes longer. cores: number of cores; None: the cores of this process.
    """
    cores = cores or available_cores()
    threads = measured.with_threads_of(job)
    workers = job.loading.num_workers
    # torch sets the threads of a worker to one.
    times = measured.one_thread if workers else threads
    loads = _phases(times.load_s, times.load_cpu_s, cores, kept)
    steps = _phases(threads.step_s, threads.step_cpu_s, cores)
    if added_step_s:
        steps = [[*step, Phase(seconds=added_step_s)] for step in steps]
    start_s = 0.0
    if workers:
        hand_off_s, start_s = _hand_off(measured, workers)
        # Persistent workers have started in the warm-up epoch.
        if job.loading.persistent_workers:
            start_s = 0.0
        # Before each step the loop receives a batch: it unpickles the batch and maps its memory.
        steps = [[Phase(seconds=hand_off_s), *step] for step in steps]
    prefetch = job.loading.batches_ahead
    # With device_prefetch a thread loads ahead of the loop. In the model it is one worker, which
    # shares the interpreter's lock with the loop.
    if job.device_prefetch and not workers:
        workers = 1
        prefetch = job.device_prefetch
        loads, steps = _with_lock(loads), _with_lock(steps)
    machinery = Machinery(workers=workers, prefetch=prefetch, cores=cores, start_s=start_s)
    return _epoch(loads, steps, machinery, measured.batches)


def predict_gathered_seconds(job: Job, measured: Measured) -> float:
    """Seconds of a whole epoch with a loader that gathers rows ahead of the loop in a thread.

    The thread is as fast as memory permits.
    """
    cores = available_cores()
    threads = measured.with_threads_of(job)
    # Gathering the rows of a batch is assumed to take as long as copying the batch.
    loads = [[Phase(seconds=measured.one_thread.clone_s)] for _ in threads.step_s]
    steps = _phases(threads.step_s, threads.step_cpu_s, cores)
    machinery = Machinery(workers=1, prefetch=FASTLOADER_AHEAD, cores=cores)
    return _epoch(loads, steps, machinery, measured.batches)


def predict_threaded_seconds(job: Job, measured: Measured, num_threads: int) -> float:
    """Seconds of a whole epoch with a loader in which `num_threads` threads read samples ahead.

    The threads run Python code.
    """
    cores = available_cores()
    # All CPU time of reading and of steps is assumed to need the interpreter's lock. Code that
    # releases the lock, as most decoders do, is faster than predicted.
    threads = measured.with_threads_of(job)
    loads = _with_lock(_phases(measured.one_thread.load_s, measured.one_thread.load_cpu_s, cores))
    steps = _with_lock(_phases(threads.step_s, threads.step_cpu_s, cores))
    machinery = Machinery(workers=num_threads, prefetch=FASTLOADER_AHEAD, cores=cores)
    return _epoch(loads, steps, machinery, measured.batches)


def _hand_off(measured: Measured, workers: int) -> tuple[float, float]:
    """Seconds to receive a batch from a worker, and seconds to start and end the workers.

    workers: number of workers.
    """
    rounds = measured.hand_off[workers]
    # The batches are ready in both passes. Only in the pass `from_workers`, workers start and end,
    # and batches go through a queue.
    batch_s = [
        (from_workers.seconds - from_workers.start_up_s - in_loop.seconds) / from_workers.batches
        for from_workers, in_loop in rounds
    ]
    start_s = stats.median([each.from_workers.start_up_s for each in rounds])
    return max(0.0, stats.median(batch_s)), start_s


def _phases(
    seconds: list[float], cpu_s: list[float], cores: float, kept: float = 1.0
) -> list[list[Phase]]:
    """The work on each batch as a single phase, a piece of work of the model.

    seconds, cpu_s: seconds and CPU seconds of each batch. cores: maximum number of cores that a
    phase uses. kept: share of the seconds that remains.
    """
    return [
        [Phase(seconds=kept * each, cores=min(cpu / each, cores) if each else 1.0)]
        for each, cpu in zip(seconds, cpu_s, strict=True)
    ]


def _with_lock(batches: list[list[Phase]]) -> list[list[Phase]]:
    """The phases in threads of one interpreter: all of their CPU time needs the lock."""
    return [[replace(phase, lock=min(1.0, phase.cores)) for phase in each] for each in batches]


def _epoch(
    loads: list[list[Phase]], steps: list[list[Phase]], machinery: Machinery, batches: int
) -> float:
    """Seconds of an epoch that repeats the measured batches until it has `batches` batches.

    At most MOST_SIMULATED of these are simulated, and the others are assumed to take as long.
    """
    count = min(batches, MOST_SIMULATED)
    # A queue hides a part of the time of a rare slow batch. In a short epoch, this part depends on
    # the place of the batch, which is chance. So the result is the mean of several epochs that
    # begin at different batches. A long epoch has slow batches at many places, and would take too
    # long to simulate several times.
    beginnings = max(1, min(MOST_BEGINNINGS, len(loads), MOST_SIMULATED // count))
    firsts = [number * len(loads) // beginnings for number in range(beginnings)]
    seconds = stats.mean(
        [
            epoch_seconds(_repeat(loads, first, count), _repeat(steps, first, count), machinery)
            for first in firsts
        ]
    )
    # An epoch starts its workers once, however long it is.
    start_s = machinery.start_s
    return start_s + (seconds - start_s) * batches / count


def _repeat(batches: list[list[Phase]], first: int, count: int) -> list[list[Phase]]:
    """`count` batches from batch `first` on; after the last one, the first follows again."""
    return [batches[(first + place) % len(batches)] for place in range(count)]
