"""Record counters of the threads that make batches or run steps, and of their processes, as facts.

The counters, which Linux keeps, show which limits a loop's processes reach, such as that of cores.
A fact, which is a dictionary in the log, has the totals since the start of its pass. Readings
become rarer as a pass goes on, and together they take a small share of a process's time.
"""

from __future__ import annotations

import os
import resource
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from fastloop.core.cgroup import QuotaPeriods, count_periods, cpu_quota
from fastloop.core.spans import now_ns, process_cpu_ns
from fastloop.core.thread_times import ThreadTime, read_schedule
from fastloop.explain.attach.memory_probe import SharedMemory
from fastloop.explain.attach.reading_allowance import Allowance
from fastloop.observe.event_log import EventLog

BLOCK_BYTES = 512
"""Unit of `ru_inblock`."""
SHM = "/dev/shm"
"""File system of the memory through which workers send batches."""
TASKS = "/proc/self/task"
"""Folder with an entry for each thread of this process."""
# Only Linux has counters for each thread.
HAS_COUNTERS = os.path.exists("/proc/thread-self/schedstat")
FREE_NS = 1_500_000
"""Nanoseconds that a process may spend at once on readings of its threads, and again on readings of
the process itself. Each worker may spend as much, in a first epoch of perhaps 200 ms."""
GROWTH, LEAST_NS = 1.5, 20_000_000
"""A process is read again if its pass has lasted GROWTH times as long as at the last reading, and
LEAST_NS longer."""
THREAD_ALLOWANCE, PROCESS_ALLOWANCE = Allowance(FREE_NS), Allowance(FREE_NS)
"""The time that this process may spend on readings of its threads, and on those of the process
itself."""


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


@dataclass
class PassUsage:
    """The usage of one pass by this process, in which it makes batches or steps on them."""

    log: EventLog
    role: str
    """`makes` if the process makes batches, `steps` if it steps on them."""
    parts: ThreadTotals = field(default_factory=ThreadTotals)
    """Growth of this thread's counters in the fetches or the steps that were read."""
    longest_idle_ns: int = 0
    """Idle time of the fetch or the step that was idle for the longest time."""
    is_begun: bool = False
    """True between the start and the end of a fetch or a step that may be read."""
    before: ThreadTotals | None = None
    """The counters of this thread as the fetch or the step began; None: they were not read."""
    start: ProcessCounters | None = None
    """The counters of the process as the pass began; None: they were not read, so that no fact is
    written."""
    next_ns: int = 0
    """Time from which the counters of the process are read again."""
    memory: SharedMemory = field(default_factory=SharedMemory)
    most_open: int = 0
    """Maximum number of file descriptors that were open at a reading."""

    def begin_part(self, *, is_first: bool = False) -> None:
        """Begin a fetch or a step.

        is_first: True if the process is to be read now, unless it was read earlier in the pass.
        """
        if not HAS_COUNTERS:
            return
        # A reading from before an error would make this part too long.
        self.is_begun = True
        self.before = None
        # Without its first reading a pass has no figures at all, so this reading may take more of
        # the allowance. In a process that also makes the batches, these have used some of it
        # before the first step.
        if is_first and self.start is None and PROCESS_ALLOWANCE.has_left(2):
            with PROCESS_ALLOWANCE.attempt_reading():
                self.start = read_process()
            self.memory.begin()
        if THREAD_ALLOWANCE.has_left():
            with THREAD_ALLOWANCE.attempt_reading():
                self.before = read_thread()

    def end_part(self, number: int, *, has_inner_loop: bool = False, is_last: bool = False) -> None:
        """End the fetch or step of the pass with this number.

        has_inner_loop: True if this thread has run another loop meanwhile, so that its counters
        also contain the work of that loop. is_last: True at the end of the pass.
        """
        self.is_begun = False
        if self.before is not None:
            before = self.before
            self.before = None
            with THREAD_ALLOWANCE.attempt_reading():
                if not has_inner_loop:
                    part = read_thread().since(before)
                    self.parts.add(part)
                    self.longest_idle_ns = max(self.longest_idle_ns, part.idle_ns)
                self._count_open()
        # The last reading has the totals of the whole pass. It may take more of the allowance, so
        # that short passes have one, too.
        is_due = PROCESS_ALLOWANCE.has_left(3) if is_last else now_ns() >= self.next_ns
        if self.start and is_due and (is_last or PROCESS_ALLOWANCE.has_left(2)):
            self.memory.read(self.start.at_ns)
            with PROCESS_ALLOWANCE.attempt_reading():
                self._write(number, self.start)

    def _count_open(self) -> None:
        # Only the loop's process holds the descriptors of the batches that workers send.
        if self.role == "steps":
            self.most_open = max(self.most_open, len(os.listdir("/proc/self/fd")))

    def _write(self, number: int, start: ProcessCounters) -> None:
        now = read_process()
        elapsed_ns = now.at_ns - start.at_ns
        self.next_ns = start.at_ns + max(int(GROWTH * elapsed_ns), elapsed_ns + LEAST_NS)
        fact: dict[str, Any] = {
            "usage_of": number,
            "role": self.role,
            "parts": vars(self.parts),
            "longest_idle_ns": self.longest_idle_ns,
            "unshared_bytes": self.memory.unshared_bytes,
            "unshared_after_ns": self.memory.elapsed_ns,
        }
        fact |= now.since(start)
        self._count_open()
        if self.role == "steps":
            fact |= {"open_files": self.most_open} | read_limits()
        self.log.add_fact(**fact)
