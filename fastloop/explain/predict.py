"""The time of an epoch after a change, as the model of a loader gives it from measured batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fastloop.core import stats
from fastloop.core.cgroup import available_cores
from fastloop.explain.model import Machinery, Phase, epoch_seconds
from fastloop.explain.passes import BatchTimes, EpochTimes
from fastloop.trial.job import Job

PREFETCH = 2
"""torch's default, and FastLoader's order of magnitude."""
MOST_SIMULATED = 400
"""Batches of a simulated epoch; those of longer ones follow at the same pace."""
MOST_BEGINNINGS = 8
HandOff = tuple[EpochTimes, EpochTimes]
"""In one round: times with ready batches from workers, and with ready batches alone."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Measurements from which predictions are made."""

    batches: int
    """In a whole epoch."""
    as_is: BatchTimes
    """With the job's threads, and without workers where the loader can do without."""
    single: BatchTimes
    """The same with torch_threads=1, as in a worker."""
    hand_off: Mapping[int, Sequence[HandOff]]
    """By number of workers, a pair of passes for each round."""
    kept: float
    """Share of the work of loading that is left if samples come from a store."""
    decode_share: float = 0.0
    transform_share: float = 0.0
    """Shares of the work of loading."""
    decoders: Mapping[str, float] = field(default_factory=dict)
    """By other decoders: time of an image relative to that of the present one."""
    batch_transform_s: float | None = None
    """Time to transform a whole batch on the device; None: it can't be, or there is none."""


def predict_seconds(
    job: Job,
    measured: Measured,
    kept: float = 1.0,
    added_step_s: float = 0.0,
    cores: float | None = None,
) -> float:
    """Seconds of a whole epoch of the job by the model alone.

    kept: share of the measured work of loading that is left. added_step_s: what each step takes
    longer. cores: that there are; None: those of this process.
    """
    cores = cores or available_cores()
    threads = measured.single if job.torch_threads == 1 else measured.as_is
    workers = job.loading.num_workers
    times = measured.single if workers else threads
    loads = _phases(times.load_s, times.load_cpu_s, cores, kept)
    steps = _phases(threads.step_s, threads.step_cpu_s, cores)
    if added_step_s:
        steps = [[*step, Phase(seconds=added_step_s)] for step in steps]
    start_s = 0.0
    if workers:
        hand_off_s, start_s = _hand_off(measured, workers)
        if job.loading.persistent_workers:
            start_s = 0.0  # they have started in an epoch before
        steps = [[Phase(seconds=hand_off_s), *step] for step in steps]
    prefetch = job.loading.prefetch_factor or PREFETCH
    if job.device_prefetch and not workers:  # a thread loads ahead of the loop
        workers, prefetch = 1, job.device_prefetch
        loads, steps = _with_lock(loads), _with_lock(steps)
    machinery = Machinery(workers=workers, prefetch=prefetch, cores=cores, start_s=start_s)
    return _epoch(loads, steps, machinery, measured.batches)


def predict_gathered_seconds(job: Job, measured: Measured) -> float:
    """Seconds of a whole epoch with a loader whose thread gathers rows ahead, at memory's speed."""
    cores = available_cores()
    threads = measured.single if job.torch_threads == 1 else measured.as_is
    loads = [[Phase(seconds=measured.single.clone_s)] for _ in threads.step_s]
    steps = _phases(threads.step_s, threads.step_cpu_s, cores)
    machinery = Machinery(workers=1, prefetch=PREFETCH, cores=cores)
    return _epoch(loads, steps, machinery, measured.batches)


def predict_threaded_seconds(job: Job, measured: Measured, num_threads: int) -> float:
    """Seconds of a whole epoch with a loader whose threads of Python read samples ahead.

    All CPU time of reading is taken for the interpreter's, whose lock one thread holds at a time;
    that of code which gives it back is less.
    """
    cores = available_cores()
    threads = measured.single if job.torch_threads == 1 else measured.as_is
    loads = _with_lock(_phases(measured.single.load_s, measured.single.load_cpu_s, cores))
    steps = _with_lock(_phases(threads.step_s, threads.step_cpu_s, cores))
    machinery = Machinery(workers=num_threads, prefetch=PREFETCH, cores=cores)
    return _epoch(loads, steps, machinery, measured.batches)


def _hand_off(measured: Measured, workers: int) -> tuple[float, float]:
    """Seconds a batch that the loop takes to receive it, and those until workers have started."""
    rounds = measured.hand_off[workers]
    batch_s = [
        (through.seconds - through.start_up_s - ready.seconds) / through.batches
        for through, ready in rounds
    ]
    start_s = stats.median([through.start_up_s for through, _ in rounds])
    return max(0.0, stats.median(batch_s)), start_s


def _phases(
    seconds: list[float], cpu_s: list[float], cores: float, kept: float = 1.0
) -> list[list[Phase]]:
    return [
        [Phase(seconds=kept * each, cores=min(cpu / each, cores) if each else 1.0)]
        for each, cpu in zip(seconds, cpu_s, strict=True)
    ]


def _with_lock(batches: list[list[Phase]]) -> list[list[Phase]]:
    """The phases as those of threads of one interpreter, all of whose CPU time needs its lock."""
    return [[replace(phase, lock=min(1.0, phase.cores)) for phase in each] for each in batches]


def _epoch(
    loads: list[list[Phase]], steps: list[list[Phase]], machinery: Machinery, batches: int
) -> float:
    """Seconds of an epoch in which the measured batches are repeated.

    Timing has begun at some batch, while what a queue hides of a rare slow one depends on its place
    in a short epoch: such an epoch is the mean of several that begin at different batches.
    """
    count = min(batches, MOST_SIMULATED)
    beginnings = max(1, min(MOST_BEGINNINGS, len(loads), MOST_SIMULATED // count))
    firsts = [number * len(loads) // beginnings for number in range(beginnings)]
    seconds = stats.mean(
        [
            epoch_seconds(_repeat(loads, first, count), _repeat(steps, first, count), machinery)
            for first in firsts
        ]
    )
    start_s = machinery.start_s
    return start_s + (seconds - start_s) * batches / count


def _repeat(batches: list[list[Phase]], first: int, count: int) -> list[list[Phase]]:
    return [batches[(first + place) % len(batches)] for place in range(count)]
