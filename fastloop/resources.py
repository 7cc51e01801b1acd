"""What a process and all its children take, looked at from outside, a few times a second.

Every figure is a lower bound: a peak between two looks and a process that lives between two looks
are not seen. What does not fall through: Linux adds the CPU time and the bytes read of an ended
child to those of the parent that waited for it (`man 5 proc`: cutime; `wait_task_zombie` in
https://github.com/torvalds/linux/blob/master/kernel/exit.c for the bytes), so that a sum over the
living is whole, and one over everybody ever seen would count such bytes twice. Context switches
move nowhere: they are kept for each thread at the last value seen.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil

SHM = Path("/dev/shm")
MIB = 2**20

Key = tuple[int, float]
"""Process number and time of its start: a number alone is given again."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Of a process and all its children, from its start to its answer; None where untold."""

    peak_pss_mib: float | None = None
    """Proportional set size: memory that several processes share is counted once."""
    peak_shm_mib: float | None = None
    """Growth of /dev/shm, by whomever; what of it is mapped is in the PSS too."""
    peak_gpu_mib: float | None = None
    """As NVML tells it for these processes, the CUDA context included."""
    cpu_cores: float | None = None
    """User and system time a second."""
    context_switches: int | None = None
    """Voluntary and involuntary, of all threads."""
    read_mib: float | None = None
    """Fetched from the storage: what the page cache gave is not in it."""
    samples: int = 0
    """How often it was looked at."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look at a process and its children; bytes, seconds and counts since their start."""

    pss: int | None = None
    shm: int | None = None
    gpu: int | None = None
    cpu_s: dict[Key, tuple[float, float]] = field(default_factory=dict)
    """Each living process's own, and that of the ended children that it waited for."""
    switches: dict[tuple[Key, int], int] = field(default_factory=dict)
    """Each living thread's."""
    read: int | None = None


class Usage:
    """What the samples of one process tree come to, whoever of it has ended meanwhile."""

    def __init__(self) -> None:
        self._shm_before = shm_bytes()
        self._peaks: dict[str, int] = {}
        self._own_cpu_s: dict[Key, float] = {}
        self._living_cpu_s = 0.0
        self._switches: dict[tuple[Key, int], int] = {}
        self._samples = 0

    def add(self, seen: Sample) -> None:
        """Take one look into account; a look at a process that has ended changes nothing."""
        if not seen.cpu_s:
            return
        self._samples += 1
        for name in ("pss", "shm", "gpu", "read"):
            if (value := getattr(seen, name)) is not None:
                self._peaks[name] = max(value, self._peaks.get(name, 0))
        self._own_cpu_s |= {key: own for key, (own, _) in seen.cpu_s.items()}
        self._living_cpu_s = max(self._living_cpu_s, sum(map(sum, seen.cpu_s.values())))
        self._switches |= seen.switches

    def resources(self, seconds: float) -> Resources | None:
        """The figures over that time; None where nothing was seen."""
        if not self._samples:
            return None
        shm = self._peaks.get("shm")
        # Both are lower bounds: the kernel forgets a child that nobody waits for, the looks miss
        # what a child did after the last of them.
        cpu_s = max(self._living_cpu_s, sum(self._own_cpu_s.values()))
        return Resources(
            peak_pss_mib=_mib(self._peaks.get("pss")),
            peak_shm_mib=None if shm is None else _mib(max(0, shm - (self._shm_before or 0))),
            peak_gpu_mib=_mib(self._peaks.get("gpu")),
            cpu_cores=cpu_s / seconds,
            context_switches=sum(self._switches.values()) if self._switches else None,
            read_mib=_mib(self._peaks.get("read")),
            samples=self._samples,
        )


def sample(pid: int) -> Sample:
    """One look at that process and all its children; empty where there is none (any more)."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return Sample()
    cpu_s: dict[Key, tuple[float, float]] = {}
    switches: dict[tuple[Key, int], int] = {}
    for one in processes:
        with contextlib.suppress(psutil.Error):  # it ended while it was looked at
            key, times = (one.pid, one.create_time()), one.cpu_times()
            cpu_s[key] = times.user + times.system, times.children_user + times.children_system
            switches |= {(key, thread): count for thread, count in _switches(one).items()}
    return Sample(
        pss=_sum_told([_pss(one) for one in processes]),
        shm=shm_bytes(),
        gpu=_gpu_bytes({one.pid for one in processes}),
        cpu_s=cpu_s,
        switches=switches,
        read=_sum_told([_read(one) for one in processes]),
    )


def shm_bytes() -> int | None:
    """Bytes in use in /dev/shm, also of files that have no name any more; None without one.

    torch unlinks the files of batches at once, so that a listing would not show them.
    """
    try:
        found = os.statvfs(SHM)
    except OSError:
        return None
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def _pss(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error):
        return getattr(process.memory_full_info(), "pss", None)
    return None


def _read(process: psutil.Process) -> int | None:
    if hasattr(process, "io_counters"):  # not on macOS
        with contextlib.suppress(psutil.Error, NotImplementedError):
            return process.io_counters().read_bytes
    return None


def _switches(process: psutil.Process) -> dict[int, int]:
    """By thread; /proc/<pid>/status, which psutil reads, knows those of the main thread only."""
    found: dict[int, int] = {}
    for path in Path(f"/proc/{process.pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            lines = path.read_text().splitlines()
            counts = [int(line.rpartition("\t")[2]) for line in lines if "_ctxt_switches:" in line]
            found[int(path.parent.name)] = sum(counts)
    return found


def _gpu_bytes(pids: set[int]) -> int | None:
    """None also where NVML knows none of them: no GPU is used, or a container hides the numbers."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        devices = [*map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))]
        listed = [*map(nvml.nvmlDeviceGetComputeRunningProcesses, devices)]
    except Exception:  # of its own kind again: a driver need not list processes
        return None
    return _sum_told([one.usedGpuMemory for some in listed for one in some if one.pid in pids])


@cache
def _nvml() -> Any | None:
    """The nvidia-ml-py package, ready to be asked; None without it or without a driver."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # its errors are its own, and differ with the driver
        return None
    return nvml


def _sum_told(values: list[int | None]) -> int | None:
    told = [value for value in values if value is not None]
    return sum(told) if told else None


def _mib(nbytes: int | None) -> float | None:
    return None if nbytes is None else nbytes / MIB
