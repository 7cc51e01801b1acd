"""The peak of memory of a configuration, forecast before it runs.

The forecast adds up what was measured of the present configuration: the process without workers, a
worker's own share (PSS counts what processes share once), and batches in queues, which are known
from their size. Rows that a loader keeps in memory, or maps and touches, come on top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastloop.core.cgroup import usable_memory_bytes
from fastloop.core.types import UsageError
from fastloop.trial.job import Job

MIB = 2**20
PREFETCH = 2
"""torch's default, in batches a worker."""
QUEUES = 1
"""Batches that a worker or the loop has in hand, beside those in queues."""


@dataclass(frozen=True, kw_only=True)
class MemoryProfile:
    """Parts of a forecast, in MiB."""

    process_mib: float
    """Peak of the job without workers, in which the dataset is read as it is."""
    worker_mib: Mapping[str, float]
    """What one more worker adds, without its batches, by start method."""
    batch_mib: float
    rows_mib: float
    """All samples as rows."""


def forecast_peak_mib(job: Job, profile: MemoryProfile) -> float:
    """The forecast peak of the job's PSS, with that of its workers."""
    loading = job.loading
    batch_mib = profile.batch_mib
    peak = profile.process_mib + (profile.rows_mib if job.loader.store is not None else 0.0)
    if loading.num_workers:
        own_mib = _worker_mib(profile, job.start_method())
        ahead = loading.prefetch_factor or PREFETCH
        peak += loading.num_workers * (own_mib + (ahead + QUEUES) * batch_mib)
    if job.device_prefetch:
        peak += (job.device_prefetch + QUEUES) * batch_mib
        if job.device_prefetch_by == "process":
            peak += _worker_mib(profile, job.start_method())
    if loading.pin_memory:
        peak += PREFETCH * batch_mib
    return peak


def _worker_mib(profile: MemoryProfile, method: str) -> float:
    """A worker's own share; of a start method that was not measured the greatest known one."""
    known = profile.worker_mib
    return known.get(method, max(known.values(), default=0.0))


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
