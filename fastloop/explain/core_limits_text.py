"""Texts on the limits of the cores that a job may use, for reports of `explain` and `attach`."""

from __future__ import annotations

from fastloop.core.number_text import show_percent, significant


def describe_cores(allowed: int, machine: int) -> str:
    """The text on the number of the machine's cores that the process's affinity allows."""
    return f"{allowed} of {machine} cores (affinity)"


def describe_quota(quota: float, throttled: float, visible_cores: int | None = None) -> str:
    """The text on a cgroup's CPU quota.

    quota: its number of cores. throttled: share of the quota's periods in which it stopped the job.
    visible_cores: number of cores without the quota; None leaves this number out of the text.
    """
    cores = f"{significant(quota)} cores"
    if visible_cores is not None:
        cores = f"{significant(quota)} of {visible_cores} cores"
    return f"{cores}; it stopped the job in {show_percent(throttled)} of its periods"
