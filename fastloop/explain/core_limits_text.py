"""The texts on limits of the cores that a job may use, which explain and attach share."""

from __future__ import annotations

from fastloop.core.number_text import show_percent, significant


def describe_cores(allowed: int, machine: int) -> str:
    """The text on the cores that the affinity of the process allows."""
    return f"{allowed} of {machine} cores (affinity)"


def describe_quota(quota: float, throttled: float, visible_cores: int | None = None) -> str:
    """The text on a cgroup's quota. throttled: share of its periods in which it stopped the job.
    visible_cores: number of cores without the quota; None leaves it out."""
    cores = f"{significant(quota)} cores"
    if visible_cores is not None:
        cores = f"{significant(quota)} of {visible_cores} cores"
    return f"{cores}; it stopped the job in {show_percent(throttled)} of its periods"
