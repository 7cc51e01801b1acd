"""Sample the resources that processes and all their children use, from another process.

Every figure is a lower bound. A peak between two samples is missed, and so is a process that begins
and ends between two samples. CPU time and bytes read survive their process: Linux adds the counters
of an ended child to the parent that waited for it (`man 5 proc`: cutime; for the bytes
`wait_task_zombie` in https://github.com/torvalds/linux/blob/master/kernel/exit.c). So a sum over
the living processes is complete. A sum over all processes ever sampled would count the bytes of
ended children twice. Linux does not add context switches to the parent, so the last value of each
thread is kept.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from fastloop.core.cgroup import usable_cores
from fastloop.core.machine_counters import LEAST_SECONDS
from fastloop.core.result import Resources
from fastloop.core.spans import cpu_ns, now_ns, seconds_between

SHM = Path("/dev/shm")
"""Folder of the files in shared memory."""
MIB = 2**20
SAMPLE_INTERVAL_S = 0.2
"""Minimum time between two samples of the processes, in seconds."""
SAMPLER_SHARE = 0.01
SAMPLER_CREDIT_S = 0.2
"""Sampling takes at most SAMPLER_SHARE of one core, plus SAMPLER_CREDIT_S seconds once. So a short
measurement is sampled often, and a long one is not slowed down. A sample takes 10 ms for each
process, see experiments/sampler."""

Key = tuple[int, float]
"""Id and start time of a process; the id alone does not suffice, because ids are reused."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Resources of a process and its children: bytes in use, and counters since their start."""

    pss: int | None = None
    """Memory in bytes (proportional set size), with each shared page divided among its users; None
    if it is unknown."""
    shm: int | None = None
    """Bytes in use in /dev/shm, by all processes of the machine; None if there is no /dev/shm."""
    gpu: int | None = None
    """Bytes of GPU memory; None if they are unknown."""
    cpu_s: dict[Key, tuple[float, float]] = field(default_factory=dict)
    """Living process -> its CPU seconds, and the CPU seconds of the ended children that it waited
    for."""
    switches: dict[tuple[Key, int], int] = field(default_factory=dict)
    """(living process, id of a thread) -> number of the thread's context switches."""
    read: int | None = None
    """Bytes that the processes have read from disks since they started; None if the system does not
    count them."""


class Usage:
    """Resources of a process and all its children over all samples, including ended processes."""

    def __init__(self) -> None:
        self._shm_before = _shm_bytes()
        self._peak_pss: int | None = None
        self._peak_shm: int | None = None
        self._peak_gpu: int | None = None
        self._most_read: int | None = None
        self._cpu_s: dict[Key, float] = {}
        self._living_cpu_s = 0.0
        self._switches: dict[tuple[Key, int], int] = {}
        self._samples = 0

    def add(self, sample: Sample) -> None:
        """Add a sample; the empty sample of an ended process has no effect."""
        if not sample.cpu_s:
            return
        self._samples += 1
        self._peak_pss = _larger(self._peak_pss, sample.pss)
        self._peak_shm = _larger(self._peak_shm, sample.shm)
        self._peak_gpu = _larger(self._peak_gpu, sample.gpu)
        self._most_read = _larger(self._most_read, sample.read)
        self._cpu_s |= {key: cpu_s for key, (cpu_s, _) in sample.cpu_s.items()}
        self._living_cpu_s = max(self._living_cpu_s, sum(map(sum, sample.cpu_s.values())))
        self._switches |= sample.switches

    def resources(self, seconds: float) -> Resources | None:
        """Resources used so far; None without a sample. seconds: time since sampling began."""
        if not self._samples:
            return None
        shm = self._peak_shm
        # Both sums are lower bounds. The first one lacks the time of ended children that nobody has
        # waited for. The second one lacks the time of each process after its last sample.
        cpu_s = max(self._living_cpu_s, sum(self._cpu_s.values()))
        return Resources(
            peak_pss_mib=_mib(self._peak_pss),
            peak_shm_mib=None if shm is None else _mib(max(0, shm - (self._shm_before or 0))),
            peak_gpu_mib=_mib(self._peak_gpu),
            cpu_cores=min(cpu_s / seconds, usable_cores()) if seconds >= LEAST_SECONDS else None,
            context_switches=sum(self._switches.values()) if self._switches else None,
            read_mib=_mib(self._most_read),
            samples=self._samples,
        )


class ResourceSampler:
    """Samples the resources of processes, each with its children, at a bounded cost in CPU time.

    pids: ids of the processes, which are observed from construction on.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._usages = {pid: Usage() for pid in pids}
        self._start_ns = now_ns()
        self._sampling_s = 0.0

    def sample_all(self) -> float | None:
        """Sample all processes; return the seconds until the next sample is due.

        Returns None if no process is observed any more.
        """
        if not self._usages:
            return None
        passed_s = seconds_between(self._start_ns, now_ns())
        before_ns = cpu_ns()
        for pid, usage in self._usages.items():
            usage.add(sample(pid))
        self._sampling_s += seconds_between(before_ns, cpu_ns())
        due_s = (self._sampling_s - SAMPLER_CREDIT_S) / SAMPLER_SHARE
        return max(SAMPLE_INTERVAL_S, due_s - passed_s)

    def finish(self, pid: int) -> Resources | None:
        """Sample a process for the last time; return the resources that it has used.

        Returns None if the process is not observed, or was never sampled.
        """
        usage = self._usages.pop(pid, None)
        if usage is None:
            return None
        usage.add(sample(pid))
        return usage.resources(seconds_between(self._start_ns, now_ns()))


def sample(pid: int) -> Sample:
    """Sample the process and all its children; the sample is empty if the process has ended."""
    try:
        root = psutil.Process(pid)
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return Sample()
    cpu_s: dict[Key, tuple[float, float]] = {}
    switches: dict[tuple[Key, int], int] = {}
    for process in processes:
        # The process may have ended meanwhile.
        with contextlib.suppress(psutil.Error):
            key = (process.pid, process.create_time())
            times = process.cpu_times()
            cpu_s[key] = times.user + times.system, times.children_user + times.children_system
            switches |= {(key, thread): count for thread, count in _switches(process).items()}
    return Sample(
        pss=_sum_of_known([_pss(process) for process in processes]),
        shm=_shm_bytes(),
        gpu=_gpu_bytes({process.pid for process in processes}),
        cpu_s=cpu_s,
        switches=switches,
        read=_sum_of_known([_read(process) for process in processes]),
    )


def _shm_bytes() -> int | None:
    """Bytes in use in /dev/shm, including unlinked files; None if there is no /dev/shm."""
    # torch unlinks the files of batches immediately, so a listing would miss them.
    stat = _stat_shm()
    return None if stat is None else (stat.f_blocks - stat.f_bfree) * stat.f_frsize


def shm_total_bytes() -> int | None:
    """Size of /dev/shm in bytes; None if there is none."""
    stat = _stat_shm()
    return None if stat is None else stat.f_blocks * stat.f_frsize


def _stat_shm() -> os.statvfs_result | None:
    """The numbers of blocks of /dev/shm, and their size; None if there is no /dev/shm."""
    with contextlib.suppress(OSError):
        return os.statvfs(SHM)
    return None


def _pss(process: psutil.Process) -> int | None:
    """PSS of the process in bytes; None if the system does not report it."""
    with contextlib.suppress(psutil.Error):
        return getattr(process.memory_full_info(), "pss", None)
    return None


def _read(process: psutil.Process) -> int | None:
    """Bytes that the process has read from disks; None if the system does not count them."""
    # macOS does not count the bytes.
    if hasattr(process, "io_counters"):
        with contextlib.suppress(psutil.Error, NotImplementedError):
            return process.io_counters().read_bytes
    return None


def _switches(process: psutil.Process) -> dict[int, int]:
    """Id of a thread -> number of its context switches, of which psutil reads only the main
    thread's."""
    switches: dict[int, int] = {}
    for path in Path(f"/proc/{process.pid}/task").glob("*/status"):
        with contextlib.suppress(OSError):
            # The file is read as bytes, because the thread's name in it may not be valid text.
            lines = path.read_bytes().splitlines()
            counts = [
                int(line.rpartition(b"\t")[2]) for line in lines if b"_ctxt_switches:" in line
            ]
            switches[int(path.parent.name)] = sum(counts)
    return switches


def _gpu_bytes(pids: set[int]) -> int | None:
    """Bytes of GPU memory of these processes, by NVIDIA's management library (NVML).

    None without NVML, and if NVML knows none of the processes: they use no GPU, or a container
    hides their ids.
    """
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        devices = [*map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))]
        processes_by_device = [*map(nvml.nvmlDeviceGetComputeRunningProcesses, devices)]
    except Exception:
        # NVML raises exceptions of its own, for example if the driver lists no processes.
        return None
    return _sum_of_known(
        [
            process.usedGpuMemory
            for processes in processes_by_device
            for process in processes
            if process.pid in pids
        ]
    )


@cache
def _nvml() -> Any | None:
    """The initialized nvidia-ml-py package; None without it or without a driver."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:
        # NVML raises exceptions of its own, which depend on the driver.
        return None
    return nvml


def _larger(one: int | None, other: int | None) -> int | None:
    """The larger of the numbers that are not None; None if both are None."""
    return max((each for each in (one, other) if each is not None), default=None)


def _sum_of_known(values: list[int | None]) -> int | None:
    """The sum of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _mib(nbytes: int | None) -> float | None:
    return None if nbytes is None else nbytes / MIB
