"""The peak of memory of a configuration, forecast before it runs.

The forecast adds up what was measured of the present configuration: the process without workers,
what some numbers of workers add (PSS counts what processes share once), and further batches in
queues, which are known from their size. Rows that a loader keeps in memory, or maps and touches,
come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fastloop.core.cgroup import usable_memory_bytes
from fastloop.core.types import UsageError
from fastloop.trial.job import Job

MIB = 2**20
PREFETCH = 2
"""torch's default, in batches a worker."""
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
    """All samples as rows, where the present loader does not read them from a store."""


def forecast_peak_mib(job: Job, profile: MemoryProfile) -> float:
    """The forecast peak of the job's PSS, with that of its workers."""
    loading = job.loading
    batch_mib = profile.batch_mib
    peak = profile.process_mib + (profile.rows_mib if job.loader.store is not None else 0.0)
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


def limit_mib(text: object) -> float:
    """The limit of `memory_limit_mib=`; None: what cgroup and machine allow. Raises UsageError."""
    if text is None:
        return usable_memory_bytes() / MIB
    try:
        value = float(str(text))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"memory_limit_mib={text}: allowed: a number of MiB above 0")
    return value
