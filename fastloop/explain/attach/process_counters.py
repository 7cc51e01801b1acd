"""Counters of this process and of its threads, as Linux keeps them, and its limits."""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from fastloop.core.cgroup import QuotaPeriods, count_periods, cpu_quota
from fastloop.core.spans import now_ns, process_cpu_ns
from fastloop.core.thread_times import ThreadTime, read_schedule

BLOCK_BYTES = 512
"""Unit of `ru_inblock`."""
SHM = "/dev/shm"
"""File system of the memory through which workers send batches."""
TASKS = "/proc/self/task"
"""Folder with an entry for each thread of this process."""
# Only Linux has counters for each thread.
HAS_COUNTERS = os.path.exists("/proc/thread-self/schedstat")


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
    """The counters of this thread. Raises OSError if they can't be read."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    own = read_schedule("/proc/thread-self")
    return ThreadTotals(
        wall_ns=now_ns(),
        cpu_ns=own.cpu_ns,
        delay_ns=own.delay_ns,
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
    """Time of the reading."""
    cpu_ns: int
    threads: dict[int, ThreadTime]
    """The time of each thread, by its id."""
    switches: dict[int, int]
    """Id of each thread of Python -> how often it gave up its core."""
    periods: QuotaPeriods
    """Periods of the CPU quota."""

    def since(self, start: ProcessCounters) -> dict[str, Any]:
        """The growth since an earlier reading."""
        # A thread that has begun meanwhile started from zero.
        threads = {
            each: time.since(start.threads.get(each, ThreadTime(0, 0)))
            for each, time in self.threads.items()
        }
        periods = self.periods.since(start.periods)
        return {
            "wall_ns": self.at_ns - start.at_ns,
            "cpu_ns": self.cpu_ns - start.cpu_ns,
            "delay_ns": sum(each.delay_ns for each in threads.values()),
            # For each thread of Python, the time in which it could run, and its switches.
            "python": [
                [threads[each].runnable_ns, count - start.switches.get(each, 0)]
                for each, count in self.switches.items()
                if each in threads
            ],
            "periods": periods.total,
            "throttled_periods": periods.throttled,
            "cores": len(os.sched_getaffinity(0)),
            "torch_threads": torch.get_num_threads(),
        }


def read_process() -> ProcessCounters:
    """Read the counters of this process. Raises OSError if its threads can't be listed."""
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
        periods=count_periods(),
    )


def _count_switches(thread: int) -> int:
    # The first line has the thread's name, which may be of any bytes.
    with suppress(OSError, StopIteration), open(f"{TASKS}/{thread}/status", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"voluntary"))
    return 0


def read_limits() -> dict[str, Any]:
    """Limits of this process: its files, its cores, and the shared memory of the machine."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {"most_files": soft, "machine_cores": os.cpu_count() or 1, "quota": cpu_quota()}
    with suppress(OSError):
        shm = os.statvfs(SHM)
        limits |= {"shm_free": shm.f_bavail * shm.f_frsize, "shm_all": shm.f_blocks * shm.f_frsize}
    return limits
