"""The names of causes of a slow loop, which explain, attach and tune share, and the limits and
texts that several of them use."""

from __future__ import annotations

from enum import StrEnum

from fastloop.core.number_text import show_percent, significant

LEAST_COMPUTING_SHARE = 0.25
"""If the CPU time of samples is below this share of their time, they wait, for example for a disk
or a network. Samples that compute are above it, even if several processes share a core."""


class CauseName(StrEnum):
    """A cause of a slow loop."""

    CORES = "the cores it may use"
    QUOTA = "a quota of CPU"
    THREADS = "torch's threads"
    STEP = "the step"
    WORKERS = "number of workers"
    DECODING = "decoding"
    COLD_FILES = "files not in memory"
    WAITS = "samples that wait"
    PER_SAMPLE = "Python per sample"
    LOCK = "the interpreter's lock"
    TENSORS = "many tensors a batch"
    DESCRIPTORS = "file descriptors"
    SHM = "/dev/shm"
    TAIL = "a heavy tail"
    STALL = "the step's own waits"


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
