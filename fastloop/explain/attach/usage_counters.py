"""Readings of the counters of this process and its threads, from the operating system."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from fastloop.core.cgroup import count_throttled, cpu_quota
from fastloop.core.spans import now_ns, process_cpu_ns, read_schedule

BLOCK_BYTES = 512
"""Unit of `ru_inblock`."""
SHM = "/dev/shm"
TASKS = "/proc/self/task"
"""Folder with an entry for each thread of this process."""
HAS_COUNTERS = os.path.exists("/proc/thread-self/schedstat")
"""False on systems other than Linux, which have no counters for each thread."""


@dataclass
class ThreadTotals:
    """Counters of a thread, or their growth."""

    wall_ns: int = 0
    cpu_ns: int = 0
    delay_ns: int = 0
    """Time in which the thread could run, and waited for a core."""
    system_ns: int = 0
    read_bytes: int = 0
    """Bytes read from storage, not from memory."""
    major_faults: int = 0
    minor_faults: int = 0
    process_ns: int = 0
    """CPU time of all threads of the process."""

    def add(self, other: ThreadTotals) -> None:
        """Add the growth of other totals."""
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def since(self, before: ThreadTotals) -> ThreadTotals:
        """The growth since an earlier reading."""
        return ThreadTotals(
            **{name: value - getattr(before, name) for name, value in vars(self).items()}
        )

    @property
    def idle_ns(self) -> int:
        """Time in which no thread of the process computed, and this one did not wait for a core."""
        return max(0, self.wall_ns - max(self.cpu_ns, self.process_ns) - self.delay_ns)


def read_thread() -> ThreadTotals:
    """The counters of this thread."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    spent_ns, delay_ns = read_schedule("/proc/thread-self")
    return ThreadTotals(
        wall_ns=now_ns(),
        cpu_ns=spent_ns,
        delay_ns=delay_ns,
        system_ns=int(1e9 * used.ru_stime),
        read_bytes=BLOCK_BYTES * used.ru_inblock,
        major_faults=used.ru_majflt,
        minor_faults=used.ru_minflt,
        process_ns=process_cpu_ns(),
    )


@dataclass(frozen=True, kw_only=True)
class ProcessCounters:
    """Counters of this process."""

    at_ns: int
    cpu_ns: int
    threads: dict[int, tuple[int, int]]
    """Thread id -> CPU time, time of waiting for a core."""
    switches: dict[int, int]
    """Id of each thread of Python -> how often it gave up its core."""
    throttled: tuple[int, int]

    def since(self, start: ProcessCounters) -> dict[str, Any]:
        """The growth since an earlier reading."""
        threads = {
            each: [a - b for a, b in zip(times, start.threads.get(each, (0, 0)), strict=True)]
            for each, times in self.threads.items()
        }
        return {
            "wall_ns": self.at_ns - start.at_ns,
            "cpu_ns": self.cpu_ns - start.cpu_ns,
            "delay_ns": sum(delay_ns for _, delay_ns in threads.values()),
            # For each thread of Python, the time in which it could run, and its switches.
            "python": [
                [sum(threads[each]), count - start.switches.get(each, 0)]
                for each, count in self.switches.items()
                if each in threads
            ],
            "throttled": [a - b for a, b in zip(self.throttled, start.throttled, strict=True)],
            "cores": len(os.sched_getaffinity(0)),
            "torch_threads": torch.get_num_threads(),
        }


def read_process() -> ProcessCounters:
    """Read the counters of this process."""
    threads = {}
    for name in os.listdir(TASKS):
        # A thread may end while it is read.
        with suppress(OSError):
            threads[int(name)] = read_schedule(f"{TASKS}/{name}")
    # A thread that is just starting has no id yet. Switches count only if there are several
    # threads, which may share the interpreter's lock.
    ids = [each.native_id for each in threading.enumerate()]
    python = [each for each in ids if each is not None and each in threads]
    return ProcessCounters(
        at_ns=now_ns(),
        cpu_ns=process_cpu_ns(),
        threads=threads,
        switches={each: _count_switches(each) for each in python} if len(python) > 1 else {},
        throttled=count_throttled(),
    )


def _count_switches(thread: int) -> int:
    # The first line has the thread's name, which may be of any bytes.
    with suppress(OSError, StopIteration), open(f"{TASKS}/{thread}/status", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"voluntary"))
    return 0


def read_shared_bytes() -> int | None:
    """Bytes of memory that this process shares with its parent or its siblings, such as pages that
    a fork has not copied yet; None if it can't be read."""
    with suppress(OSError), open("/proc/self/smaps_rollup") as file:
        # The file counts in kB. Clean pages do not count, as they belong to programs and files.
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Shared_Dirty"))
    return None


def read_limits() -> dict[str, Any]:
    """The limits of open files, of cores and of shared memory, by their names in a fact."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {"most_files": soft, "machine_cores": os.cpu_count() or 1, "quota": cpu_quota()}
    with suppress(OSError):
        shm = os.statvfs(SHM)
        limits |= {"shm_free": shm.f_bavail * shm.f_frsize, "shm_all": shm.f_blocks * shm.f_frsize}
    return limits
