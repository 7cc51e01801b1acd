"""The peak of memory of a configuration: observed, and forecast before it runs.

It is observed in the job's own process while its workers live, as batches are delivered, when
memory is largest. Sampling from outside, as during trials, misses a short epoch: its workers live
for a tenth of a second.

The forecast is a sum of measurements of the present configuration: the memory of the process
without workers, and the memory that some numbers of workers add (PSS counts shared pages once).
Further batches in queues are added by their size. Rows that a loader maps come on top, and once
more if it copies them into memory, as the mapped pages stay in use.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fastloop.core.cgroup import usable_memory_bytes
from fastloop.core.loading_settings import TORCH_PREFETCH
from fastloop.core.plan import PreparedData
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import Tree, UsageError
from fastloop.data.digest import HELD_BATCHES
from fastloop.explain.explained_job import count_batches
from fastloop.explain.rung_passes import benchmark_of
from fastloop.processes.resources import MIB, sample
from fastloop.trial.gather_limit import MAX_SOURCE_BYTES
from fastloop.trial.job import Job
from fastloop.trial.job_start import start_job
from fastloop.trial.training_limit import MAX_REPLAY_BATCHES
from fastloop.trial.window import Consumer

MARGIN = 0.1
"""Share by which a forecast may be too low: 97 % of 144 peaks were within it (experiments/tune)."""
IN_HAND = 1
"""Number of batches that the loop holds, beside the batches in a queue."""
OBSERVED_EPOCHS = 2
"""Number of epochs in which the peak is observed."""
READINGS = 12
"""About the number of readings in an epoch; a reading takes milliseconds for each process."""


def observe_peak_mib(job: Job, prepared: PreparedData) -> float | None:
    """The greatest PSS, in MiB, of this process and its workers in two epochs with steps; None if
    the system does not tell it."""
    context = start_job(job, prepared, 0)
    whole = count_batches(job, prepared)
    count = min(whole, job.batches or whole)
    peaks: list[int] = []
    with context.open_loader() as loader:
        batches = iter(loader.epochs(job.epochs))
        first, deliver = next(batches), context.step_delivery()
        consume, _ = benchmark_of(job).session(context.build_setup(first)).start(deliver)
        # This ends the workers of the first epoch. Otherwise they would be counted together with
        # the next ones.
        del batches
        for number in range(OBSERVED_EPOCHS):
            peaks += _read_during(loader.epochs(number), consume, count)
    return max(peaks) / MIB if peaks else None


def _read_during(batches: Iterable[Tree], consume: Consumer, count: int) -> list[int]:
    """The PSS in bytes at about READINGS batches of an epoch and at its last one.

    count: the number of batches of the epoch.
    """
    every, readings = max(1, count // READINGS), []
    for number, batch in enumerate(batches, 1):
        consume(batch)
        if number % every == 0 or number == count:
            readings.append(sample(os.getpid()).pss)
    return [each for each in readings if each is not None]


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Parts of a forecast, in MiB."""

    process_mib: float
    """Peak of the present job without workers."""
    added_mib: Mapping[str, Mapping[int, float]]
    """The memory that workers add, by start method and number of workers."""
    prefetch_factor: int = TORCH_PREFETCH
    """The prefetch_factor of the passes in which added_mib was observed."""
    batch_mib: float
    batches: int
    """Number of batches in an epoch; no more than that are in queues."""
    rows_mib: float
    """Size of all samples as rows."""
    included_rows_mib: float = 0.0
    """Rows that the present loader has mapped or copied; process_mib includes them."""


def forecast_peak_mib(job: Job, profile: MemoryProfile) -> float:
    """The forecast peak of the PSS of the job's process and its workers."""
    loading = job.loading
    batch_mib = profile.batch_mib
    peak = profile.process_mib + max(0.0, _rows_mib(job, profile) - profile.included_rows_mib)
    if workers := loading.num_workers:
        ahead, usual = loading.batches_ahead, profile.prefetch_factor
        # The observed workers had batches in their queues, which are not added twice.
        queued, included = (min(workers * each, profile.batches) for each in (ahead, usual))
        peak += _workers_mib(profile, job.start_method(), workers)
        peak += max(0, queued - included) * batch_mib
    if job.device_prefetch:
        peak += (min(job.device_prefetch, profile.batches) + IN_HAND) * batch_mib
        if job.device_prefetch_by == "process":
            peak += _workers_mib(profile, job.start_method(), 1)
    # DataLoader's pinning thread holds copies of the next batches.
    if loading.pin_memory:
        peak += TORCH_PREFETCH * batch_mib
    return peak


def forecast_trial_mib(job: Job, profile: MemoryProfile) -> float:
    """The peak that a trial of the job may reach: the forecast with the memory that measuring
    holds, and with the margin."""
    return (1 + MARGIN) * (forecast_peak_mib(job, profile) + _measuring_mib(job, profile))


def _measuring_mib(job: Job, profile: MemoryProfile) -> float:
    """The MiB that a trial holds to compare data, or to measure its limit: batches, or rows."""
    # Comparing and measuring come one after the other, so the greater of both counts.
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
    """The MiB that this number of workers adds; for a start method that was not observed, the most
    of the others."""
    known = profile.added_mib
    curves = [known[method]] if method in known else [*known.values()]
    return max((_interpolate(curve, workers) for curve in curves), default=0.0)


def _interpolate(added_mib: Mapping[int, float], workers: int) -> float:
    """The MiB that this number of workers adds: linear between zero and the observed numbers,
    and in proportion beyond."""
    most = max(added_mib)
    if workers >= most:
        return added_mib[most] * workers / most
    counts = [0, *sorted(added_mib)]
    return float(np.interp(workers, counts, [0.0, *(added_mib[each] for each in counts[1:])]))


def usable_mib() -> float:
    """The MiB that cgroup and machine allow."""
    return usable_memory_bytes() / MIB


def limit_mib(text: object) -> float | None:
    """The limit of `memory_limit_mib=`; None: there is no limit. Raises UsageError."""
    if text is None:
        return None
    try:
        value = float(str(text))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"memory_limit_mib={text}: allowed: a number of MiB above 0")
    return value
