"""Observe the peak memory of the present configuration, and forecast the peaks of other ones.

Memory is the sum of the PSS (proportional set size) of a job's process and its workers: a page that
several of these processes share counts once. `observe_memory` runs passes of the present job,
without workers and with workers, and returns a `MemoryProfile`. From the profile,
`forecast_peak_mib` adds up the memory of another job: the process without workers, its workers,
further batches in queues, and the rows that its loader maps. Rows that a loader copies into memory
count twice, because the mapped pages stay in use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from functools import partial

import numpy as np

from fastloop.core.cgroup import usable_memory_bytes
from fastloop.core.loading_settings import TORCH_PREFETCH
from fastloop.core.prepared_data import PreparedData
from fastloop.core.time_limits import TimedPasses
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import JobFailed, Tree
from fastloop.data.digest import HELD_BATCHES
from fastloop.explain.explained_job import ExplainedJob, count_batches
from fastloop.explain.job_facts import benchmark_of
from fastloop.processes.resources import MIB, sample
from fastloop.trial.gather_limit import MAX_SOURCE_BYTES
from fastloop.trial.job import Job
from fastloop.trial.job_start import start_job
from fastloop.trial.training_limit import MAX_REPLAY_BATCHES
from fastloop.trial.window import Consumer

FORECAST_MARGIN = 0.1
"""Share that is added to a forecast, which may be too low: 97 % of 144 peaks were at most this
share above their forecast (experiments/tune)."""
BATCHES_IN_HAND = 1
"""Number of batches that the loop holds, besides the batches in a queue."""
OBSERVED_EPOCHS = 2
"""Number of epochs in which the peak is observed."""
READINGS_OF_EPOCH = 12
"""Approximate number of readings in an epoch; a reading takes milliseconds for each process."""


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """The measurements from which memory is forecast, in MiB."""

    process_mib: float
    """Peak of the present job without workers."""
    added_mib: Mapping[str, Mapping[int, float]]
    """Start method -> number of workers -> the memory that these workers add."""
    prefetch_factor: int = TORCH_PREFETCH
    """The prefetch_factor of the passes in which `added_mib` was observed."""
    batch_mib: float
    """Size of a batch."""
    batches: int
    """Number of batches in an epoch; queues never hold more batches."""
    rows_mib: float
    """Size of all samples as rows of a store."""
    included_rows_mib: float = 0.0
    """Size of the rows that the present loader maps or copies; `process_mib` includes them."""


def observe_memory(
    explained: ExplainedJob,
    whole_batches: int,
    workers: Set[int],
    limit_mib: float,
    passes: TimedPasses,
) -> MemoryProfile | None:
    """Observe the memory of the present job, without workers and with up to two numbers of workers.

    The numbers are the smallest and the largest one in `workers` that seem to stay within
    `limit_mib`. whole_batches: number of batches in a whole epoch. passes: runs the passes, as long
    as there is time. Returns None if memory can't be observed, or if there is no time for that.
    """
    job = explained.job
    prepared = explained.prepared
    without_workers = explained.without_workers(job.torch_threads)
    if not passes.have_time():
        return None
    process_mib = passes.run(partial(_peak_mib, without_workers))
    if process_mib is None:
        return None
    added_mib = _observe_workers(explained, workers, limit_mib, process_mib, passes)
    if added_mib is None:
        return None
    rows_mib = prepared.num_samples * prepared.sample_nbytes / MIB
    return MemoryProfile(
        process_mib=process_mib,
        added_mib={job.start_method(): added_mib} if added_mib else {},
        # The passes with workers have begun from these settings, too.
        prefetch_factor=without_workers.job.loading.batches_ahead,
        batch_mib=prepared.sample_nbytes * job.loading.batch_size / MIB,
        batches=job.batches or whole_batches,
        rows_mib=rows_mib,
        included_rows_mib=_count_rows_held(job, prepared) * rows_mib,
    )


def _observe_workers(
    explained: ExplainedJob,
    workers: Set[int],
    limit_mib: float,
    process_mib: float,
    passes: TimedPasses,
) -> dict[int, float] | None:
    """Observe the MiB that workers add, for the smallest and the largest number that seems to fit.

    process_mib: the memory of a pass without workers. Returns the MiB by number of workers; empty
    if no number fits or the first pass failed, None if there is no time for these passes.
    """
    without_workers = explained.without_workers(explained.job.torch_threads)
    added_mib: dict[int, float] = {}
    # Two numbers of workers are observed, because memory is not proportional to the number. The
    # first worker adds more than others, as it keeps the pages that the process has changed since
    # the fork. The last workers of many add less, as they have little to do in a short epoch.
    for choose in (min, max):
        fitting = [n for n in workers if process_mib + _interpolate(added_mib, n) <= limit_mib]
        counts = [n for n in fitting if n not in added_mib]
        if not counts:
            break
        if not passes.have_time():
            return None
        count = choose(counts)
        with_workers = without_workers.with_workers(
            count, explained.job.loading.multiprocessing_context
        )
        peak_mib = passes.run(partial(_peak_mib, with_workers))
        # If the pass with the fewest workers has failed, the memory of more workers can't be
        # estimated, so no pass with more workers is tried.
        if peak_mib is None:
            break
        added_mib[count] = max(0.0, peak_mib - process_mib)
    return added_mib


def _peak_mib(explained: ExplainedJob) -> float | None:
    """Observe the peak of the PSS of a pass in a child process, in MiB.

    None if the system does not report the PSS, or if the pass failed.
    """
    job = explained.job
    explained.begin_step("observing memory")
    try:
        return explained.launcher.call(
            observe_peak_mib, job, explained.prepared, timeout_s=job.trial_timeout_s
        )
    except JobFailed:
        return None


def observe_peak_mib(job: Job, prepared: PreparedData) -> float | None:
    """Observe the greatest PSS of this process and its workers, in MiB, in two epochs with steps.

    None if the system does not report the PSS.
    """
    # The process that steps reads the memory itself while batches are delivered: then memory is
    # greatest, and the workers live. Another process that reads it from time to time would miss a
    # short epoch, in which workers live for a tenth of a second.
    context = start_job(job, prepared, 0)
    whole = count_batches(job, prepared)
    count = min(whole, job.batches or whole)
    peaks: list[int] = []
    with context.open_loader() as loader:
        batches = iter(loader.epochs(job.epochs))
        first = next(batches)
        deliver = context.step_delivery()
        consume, _ = benchmark_of(job).session(context.build_setup(first)).start(deliver)
        # This ends the workers of the first epoch, which would otherwise be counted together with
        # the workers of the next epoch.
        del batches
        for number in range(OBSERVED_EPOCHS):
            peaks += _read_during(loader.epochs(number), consume, count)
    return max(peaks) / MIB if peaks else None


def _read_during(batches: Iterable[Tree], consume: Consumer, count: int) -> list[int]:
    """Read the PSS in bytes at about READINGS_OF_EPOCH batches of an epoch and at its last one.

    count: the number of batches of the epoch.
    """
    every = max(1, count // READINGS_OF_EPOCH)
    readings = []
    for number, batch in enumerate(batches, 1):
        consume(batch)
        if number % every == 0 or number == count:
            readings.append(sample(os.getpid()).pss)
    return [each for each in readings if each is not None]


def _count_rows_held(job: Job, prepared: PreparedData) -> float:
    """Number of copies of all rows that an observed pass has in memory.

    The number is a fraction if the pass reads only some of the rows.
    """
    if job.loader.store is None:
        return 0.0
    # The loader copies the rows into memory, and their mapped pages stay in memory, too.
    if traits_of(LoaderTraits, job.loader).in_memory:
        return 2.0
    batches = job.batches or math.inf
    return min(1.0, batches * job.loading.batch_size / prepared.num_samples)


def forecast_peak_mib(job: Job, profile: MemoryProfile) -> float:
    """Forecast the peak of the PSS of the job's process and its workers, in MiB."""
    loading = job.loading
    batch_mib = profile.batch_mib
    peak = profile.process_mib + max(0.0, _rows_mib(job, profile) - profile.included_rows_mib)
    if workers := loading.num_workers:
        # The memory of the observed workers includes batches in queues, which are not added again.
        queued = min(workers * loading.batches_ahead, profile.batches)
        included = min(workers * profile.prefetch_factor, profile.batches)
        peak += _workers_mib(profile, job.start_method(), workers)
        peak += max(0, queued - included) * batch_mib
    if job.device_prefetch:
        peak += (min(job.device_prefetch, profile.batches) + BATCHES_IN_HAND) * batch_mib
        if job.device_prefetch_by == "process":
            peak += _workers_mib(profile, job.start_method(), 1)
    # DataLoader's pinning thread holds copies of the next batches.
    if loading.pin_memory:
        peak += TORCH_PREFETCH * batch_mib
    return peak


def forecast_trial_mib(job: Job, profile: MemoryProfile) -> float:
    """Forecast the peak that a trial of the job may reach, in MiB.

    This is the sum of the job's own peak and the memory for measuring, plus FORECAST_MARGIN.
    """
    return (1 + FORECAST_MARGIN) * (forecast_peak_mib(job, profile) + _measuring_mib(job, profile))


def _measuring_mib(job: Job, profile: MemoryProfile) -> float:
    """The MiB that a trial holds to compare data, or to measure the limit.

    The limit is the speed of the same work without a loader.
    """
    # Batches are held for the comparison, and batches or rows for the limit. The limit is measured
    # at another time than the data are compared, so only the greatest of these sizes counts.
    limits = {each.limit for each in job.benchmark.values()}
    batches = max(HELD_BATCHES, MAX_REPLAY_BATCHES if "replay" in limits else 0)
    source_mib = min(profile.rows_mib, MAX_SOURCE_BYTES / MIB) if "gather" in limits else 0.0
    return max(batches * profile.batch_mib, source_mib)


def _rows_mib(job: Job, profile: MemoryProfile) -> float:
    """The MiB of rows that a job maps, and copies into memory."""
    if job.loader.store is None:
        return 0.0
    copies = traits_of(LoaderTraits, job.loader).in_memory
    return (2 if copies else 1) * profile.rows_mib


def _workers_mib(profile: MemoryProfile, method: str, workers: int) -> float:
    """The MiB that this number of workers adds.

    For a start method that was not observed, the maximum over the observed methods; 0 if there are
    none.
    """
    known = profile.added_mib
    curves = [known[method]] if method in known else [*known.values()]
    return max((_interpolate(curve, workers) for curve in curves), default=0.0)


def _interpolate(added_mib: Mapping[int, float], workers: int) -> float:
    """The MiB that this number of workers adds, by linear interpolation.

    added_mib: number of workers -> MiB that were observed; zero workers add nothing. Beyond the
    largest observed number, the MiB grow in proportion to the number. 0 if nothing was observed.
    """
    if not added_mib:
        return 0.0
    most = max(added_mib)
    if workers >= most:
        return added_mib[most] * workers / most
    counts = [0, *sorted(added_mib)]
    return float(np.interp(workers, counts, [0.0, *(added_mib[each] for each in counts[1:])]))


def usable_mib() -> float:
    """The MiB of memory that the cgroup and the machine allow."""
    return usable_memory_bytes() / MIB
