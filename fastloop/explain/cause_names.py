"""The names of the causes of a slow loop, which `explain` and `attach` report."""

from __future__ import annotations

from enum import StrEnum


class CauseName(StrEnum):
    """A cause of a slow loop; the value is its name in texts and files."""

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
