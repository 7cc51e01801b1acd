"""The surroundings of an explained job: its threads, its cores, and files in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fastloop.core.cgroup import QuotaPeriods, count_affinity, count_periods, cpu_quota
from fastloop.explain.batch_passes import BatchTimes
from fastloop.explain.predict import Measured, predict_seconds
from fastloop.trial.job import Job
from fastloop.trial.page_cache import files_below, resident_fraction

MOST_FILES = 1000
"""Maximum number of files in which cached pages are counted, spread evenly over all files."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The threads, cores and page cache of a job."""

    torch_threads: int
    visible_cores: int
    """Number of cores by affinity, without a quota."""
    quota: float | None
    """Number of cores by the cgroup's CPU quota; None: there is no quota."""
    throttled: float
    """Share of the quota's periods in which it stopped this job."""
    in_memory: float | None
    """Share of the pages of the job's files that were in memory before it ran; None: unknown."""
    gain_without_quota: float | None
    """Share of an epoch that the job would save on all visible cores without the quota, by the
    model; None: there is no quota below visible_cores, or no prediction."""
    machine_cores: int
    """Number of the machine's cores, whether the job may use them or not."""
    load_cpu_share: float
    """CPU time of making a batch in the loop, as a share of the time of making it. Waits for a core
    do not count as time."""

    @property
    def available_cores(self) -> float:
        """Number of cores that both affinity and quota allow."""
        return min(self.visible_cores, self.quota or self.visible_cores)


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """Facts about the surroundings, read before any pass because passes change these facts.

    A pass is a timed run of the job or of a part of it.
    """

    in_memory: float | None
    """Share of the pages of the job's files that are in memory; None: unknown."""
    periods: QuotaPeriods
    """The counters of the quota's periods."""


def look_before(files: Sequence[Path]) -> Beginning:
    """The state before any pass: cached pages of these files, and the counters of the quota."""
    paths = files_below(files)
    # -(-a // b) rounds up, so at most MOST_FILES files are selected; without files the step is 1.
    looked_at = paths[:: -(-len(paths) // MOST_FILES) or 1]
    return Beginning(in_memory=resident_fraction(looked_at), periods=count_periods())


def look_after(
    job: Job, beginning: Beginning, measured: Measured | None, without_workers: BatchTimes
) -> Surroundings:
    """The surroundings of a job after its passes.

    measured: the input of the model; None if the model misses the job's time, so nothing is
    predicted. without_workers: the times of the job's batches without workers.
    """
    quota, visible = cpu_quota(), count_affinity()
    has_less = quota is not None and quota < visible
    return Surroundings(
        torch_threads=job.torch_threads or torch.get_num_threads(),
        visible_cores=visible,
        quota=quota,
        throttled=count_periods().since(beginning.periods).share_throttled,
        in_memory=beginning.in_memory,
        gain_without_quota=_gain(job, measured, visible) if measured and has_less else None,
        machine_cores=os.cpu_count() or visible,
        load_cpu_share=without_workers.load_cpu_share,
    )


def _gain(job: Job, measured: Measured, visible_cores: int) -> float | None:
    """Share of an epoch that all visible cores would save; None: no prediction."""
    # A quota below one core slows down even a single thread, so no measured time is free of it.
    if (cpu_quota() or 0) < 1:
        return None
    return 1 - predict_seconds(job, measured, cores=visible_cores) / predict_seconds(job, measured)
