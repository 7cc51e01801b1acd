"""The peak of memory of a configuration, forecast before it runs.

The forecast adds up what was measured of the present configuration: the process without workers,
what some numbers of workers add (PSS counts what processes share once), and further batches in
queues, which are known from their size. Rows that a loader maps and touches come on top, and once
more where it copies them into memory: the mapped pages stay in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fastloop.core.cgroup import usable_memory_bytes
from fastloop.core.traits import LoaderTraits, traits_of
from fastloop.core.types import UsageError
from fastloop.data.digest import HELD_BATCHES
from fastloop.trial.gather import MAX_SOURCE_BYTES
from fastloop.trial.job import Job
from fastloop.trial.replay import MAX_REPLAY_BATCHES

MIB = 2**20
PREFETCH = 2
"""torch's default, in batches a worker."""
MARGIN = 0.1
"""By which forecasts may be too low, see experiments/tune."""
IN_HAND = 1
"""Batches that the loop has in hand, beside those in a queue."""


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Parts of a forecast, in MiB."""

    process_mib: float
    """Peak of the job without workers, in which the dataset is read as it is."""
    added_mib: Mapping[str, Mapping[int, float]]
    """What workers add, by start method and number of workers."""
    prefetch_factor: int = PREFETCH
    """With which those were observed."""
    batch_mib: float
    batches: int
    """In an epoch; no more are in queues."""
    rows_mib: float
    """All samples as rows."""
    included_rows_mib: float = 0.0
    """Rows that the present loader has mapped or copied, which the process includes."""


def forecast_peak_mib(job: Job, profile: MemoryProfile) -> float:
    """The forecast peak of the job's PSS, with that of its workers."""
    loading = job.loading
    batch_mib = profile.batch_mib
    peak = profile.process_mib + max(0.0, _rows_mib(job, profile) - profile.included_rows_mib)
    if workers := loading.num_workers:
        ahead, usual = loading.prefetch_factor or PREFETCH, profile.prefetch_factor
        queued, included = (min(workers * each, profile.batches) for each in (ahead, usual))
        peak += _workers_mib(profile, job.start_method(), workers)
        peak += max(0, queued - included) * batch_mib
    if job.device_prefetch:
        peak += (min(job.device_prefetch, profile.batches) + IN_HAND) * batch_mib
        if job.device_prefetch_by == "process":
            peak += _workers_mib(profile, job.start_method(), 1)
    if loading.pin_memory:
        peak += PREFETCH * batch_mib
    return peak


def forecast_trial_mib(job: Job, profile: MemoryProfile) -> float:
    """The most that a trial of the job may take: with what measuring takes, and the margin."""
    return (1 + MARGIN) * (forecast_peak_mib(job, profile) + _measuring_mib(job, profile))


def _measuring_mib(job: Job, profile: MemoryProfile) -> float:
    """The MiB that a trial holds to compare data, or for its limit: batches, or rows to gather."""
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
    """The MiB that so many workers add; for a start method not observed, the most of all."""
    known = profile.added_mib
    curves = [known[method]] if method in known else [*known.values()]
    return max((_interpolate(curve, workers) for curve in curves), default=0.0)


def _interpolate(added_mib: Mapping[int, float], workers: int) -> float:
    """Linear between none, which add nothing, and the observed numbers; in proportion beyond."""
    most = max(added_mib)
    if workers >= most:
        return added_mib[most] * workers / most
    counts = [0, *sorted(added_mib)]
    return float(np.interp(workers, counts, [0.0, *(added_mib[each] for each in counts[1:])]))


def usable_mib() -> float:
    """The MiB that cgroup and machine allow."""
    return usable_memory_bytes() / MIB


def limit_mib(text: object) -> float | None:
    """The limit of `memory_limit_mib=`; None where there is none. Raises UsageError."""
    if text is None:
        return None
    try:
        value = float(str(text))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"memory_limit_mib={text}: allowed: a number of MiB above 0")
    return value
