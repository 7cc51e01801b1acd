"""The probe of the limits that a loop's processes reach: counters of the threads that make batches,
of steps, and of each process, written as facts.

A fact has the totals since the start of its pass. Readings become rarer as a pass goes on, and
together they take a small share of a process's time.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

# A process that is attached to may import this module before torch.utils.data is complete.
from torch.utils.data._utils.worker import get_worker_info

from fastloop.core.cgroup import count_throttled, cpu_quota
from fastloop.core.spans import cpu_ns, now_ns, process_cpu_ns, read_schedule
from fastloop.observe.event_log import EventLog

FREE_NS = 1_500_000
"""Nanoseconds that a process may spend at once on readings of its threads, and again on readings of
the process itself. Each worker may spend as much, in a first epoch of perhaps 200 ms."""
FREE_MEMORY_NS = 20_000_000
"""The same for readings of its memory: a single one takes 12 ms in a process that has imported
torch."""
MOST_COST = 0.002
"""Share of a process's time that each kind of reading may take later. All readings and the events
of each batch together must take less than 2 % of a script."""
GROWTH, LEAST_NS = 1.5, 20_000_000
"""A process is read again if its pass has lasted GROWTH times as long as at the last reading, and
LEAST_NS longer."""
MEMORY_GROWTH, LEAST_MEMORY_NS = 4, 100_000_000
"""The same for readings of memory, which take milliseconds. The first one comes after
LEAST_MEMORY_NS."""
BLOCK_BYTES = 512
"""Unit of `ru_inblock`."""
SHM = "/dev/shm"
TASKS = "/proc/self/task"
"""Folder with an entry for each thread of this process."""


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


def _read_thread() -> ThreadTotals:
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


class Allowance:
    """The time that this process may spend on readings."""

    def __init__(self, most_ns: int) -> None:
        """most_ns: the most that a single reading counts for."""
        self.most_ns = most_ns
        self.process_id = self.start_ns = self.spent_ns = 0

    def has_left(self, free_ns: int = FREE_NS) -> bool:
        """True if there may be another reading. free_ns: time that may be spent at once."""
        # A fork has an allowance of its own, which it has not spent yet.
        if self.process_id != os.getpid():
            self.process_id, self.start_ns, self.spent_ns = os.getpid(), now_ns(), 0
        return self.spent_ns < free_ns + MOST_COST * (now_ns() - self.start_ns)

    @contextmanager
    def spend(self) -> Iterator[None]:
        """A context that counts its time as spent; it ends early if a reading fails."""
        start_ns = cpu_ns()
        try:
            yield
        # A reading fails, for example, if the process has no file descriptor left.
        except OSError:
            pass
        finally:
            # Python may collect garbage meanwhile, which takes 40 ms in a process that has imported
            # torch, and is none of the reading's cost.
            self.spent_ns += min(cpu_ns() - start_ns, self.most_ns)


OF_THREADS, OF_PROCESS = Allowance(FREE_NS), Allowance(FREE_NS)
OF_MEMORY = Allowance(FREE_MEMORY_NS)


class MemoryTurns:
    """Chooses the passes in which a worker's memory is read, which takes milliseconds: the first
    pass with workers, and later one each time that this process has run MEMORY_GROWTH times as
    long."""

    def __init__(self) -> None:
        self.process_id = self.start_ns = self.next_ns = 0

    def open(self) -> None:
        """Begin to count, in the process that is to start the workers."""
        self.process_id, self.start_ns = os.getpid(), now_ns()

    def end_turn(self) -> None:
        """Note that the workers of a pass have started."""
        if now_ns() >= self.next_ns:
            self.next_ns = self.start_ns + MEMORY_GROWTH * (now_ns() - self.start_ns)

    def has_turn(self) -> bool:
        """True in the first worker of a pass that has its turn, if it is a fork of this process:
        only a fork copies its parent's memory, and one worker shows how much."""
        info = get_worker_info()
        is_fork = self.start_ns > 0 and self.process_id != os.getpid()
        return info is not None and info.id == 0 and is_fork and now_ns() >= self.next_ns


MEMORY_TURNS = MemoryTurns()
# Only Linux has counters for each thread.
HAS_COUNTERS = os.path.exists("/proc/thread-self/schedstat")


@dataclass
class PassUsage:
    """The usage of one pass by this process, in which it makes batches or steps on them."""

    log: EventLog
    role: str
    """`makes` or `steps`."""
    parts: ThreadTotals = field(default_factory=ThreadTotals)
    """Growth of this thread's counters in the fetches or the steps that were read."""
    longest_idle_ns: int = 0
    """Idle time of the fetch or the step that was idle for the longest time."""
    is_begun: bool = False
    """True between the begin and the end of a fetch or a step that may be read."""
    before: ThreadTotals | None = None
    next_ns: int = 0
    shared_bytes: int | None = None
    """Memory that a worker shared with other processes at first; None: it was not read."""
    memory_ns: int = 0
    """Time of the next reading of memory, which takes long."""
    start: ProcessCounters | None = None
    most_open: int = 0
    unshared: list[int] = field(default_factory=lambda: [0, 1])
    """Bytes of memory that this process no longer shares, and nanoseconds from the start of the
    pass to that reading. Without a reading they are 0 and 1, which makes a rate of 0."""

    def begin_part(self, *, is_first: bool = False) -> None:
        """Begin a fetch or a step. is_first: True for the first one of the pass."""
        if not HAS_COUNTERS:
            return
        # A reading from before an error would make this part too long.
        self.is_begun, self.before = True, None
        # Without its first reading a pass has no figures at all, so this reading may take more of
        # the allowance. In a process that also makes the batches, these have used some of it
        # before the first step.
        if is_first and self.start is None and OF_PROCESS.has_left(2 * FREE_NS):
            with OF_PROCESS.spend():
                self.start = read_process()
            if MEMORY_TURNS.has_turn() and OF_MEMORY.has_left(FREE_MEMORY_NS):
                with OF_MEMORY.spend():
                    self.shared_bytes = _read_shared_bytes()
                    self.memory_ns = now_ns() + LEAST_MEMORY_NS
        if OF_THREADS.has_left():
            with OF_THREADS.spend():
                self.before = _read_thread()

    def end_part(self, number: int, *, is_alone: bool = True, is_last: bool = False) -> None:
        """End the fetch or step of the pass with this number.

        is_alone: False if this thread has done something else meanwhile. is_last: True at the end
        of the pass.
        """
        self.is_begun = False
        if self.before is not None:
            before, self.before = self.before, None
            with OF_THREADS.spend():
                if is_alone:
                    part = _read_thread().since(before)
                    self.parts.add(part)
                    self.longest_idle_ns = max(self.longest_idle_ns, part.idle_ns)
                self._count_open()
        # The last reading has the totals of the whole pass. It may take more of the allowance, so
        # that short passes have one, too.
        is_due = OF_PROCESS.has_left(3 * FREE_NS) if is_last else now_ns() >= self.next_ns
        if self.start and is_due and (is_last or OF_PROCESS.has_left(2 * FREE_NS)):
            self._read_memory(self.start)
            with OF_PROCESS.spend():
                self._write(number, self.start)

    def _read_memory(self, start: ProcessCounters) -> None:
        if (
            self.shared_bytes is None
            or now_ns() < self.memory_ns
            or not OF_MEMORY.has_left(FREE_MEMORY_NS)
        ):
            return
        with OF_MEMORY.spend():
            shared_bytes, elapsed_ns = _read_shared_bytes(), now_ns() - start.at_ns
            self.memory_ns = start.at_ns + MEMORY_GROWTH * elapsed_ns
            if shared_bytes is not None:
                self.unshared = [self.shared_bytes - shared_bytes, elapsed_ns]

    def _count_open(self) -> None:
        # Only the loop's process holds the descriptors of the batches that workers send.
        if self.role == "steps":
            self.most_open = max(self.most_open, len(os.listdir("/proc/self/fd")))

    def _write(self, number: int, start: ProcessCounters) -> None:
        now = read_process()
        elapsed_ns = now.at_ns - start.at_ns
        self.next_ns = start.at_ns + max(int(GROWTH * elapsed_ns), elapsed_ns + LEAST_NS)
        fact: dict[str, Any] = {"usage_of": number, "role": self.role, "parts": vars(self.parts)}
        fact["longest_idle_ns"] = self.longest_idle_ns
        fact |= now.since(start) | {"unshared": self.unshared}
        self._count_open()
        if self.role == "steps":
            fact |= {"open_files": self.most_open} | _read_limits()
        self.log.add_fact(**fact)


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


def _read_shared_bytes() -> int | None:
    """Bytes of memory that this process shares with its parent or its siblings, such as what a fork
    has not copied yet; None if it can't be read."""
    with suppress(OSError), open("/proc/self/smaps_rollup") as file:
        # The file counts in kB. Clean pages do not count, as they belong to programs and files.
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Shared_Dirty"))
    return None


def _read_limits() -> dict[str, Any]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = {"most_files": soft, "machine_cores": os.cpu_count() or 1, "quota": cpu_quota()}
    with suppress(OSError):
        shm = os.statvfs(SHM)
        limits |= {"shm_free": shm.f_bavail * shm.f_frsize, "shm_all": shm.f_blocks * shm.f_frsize}
    return limits


def count_tensors(batch: Any) -> int:
    """Number of tensors of a batch."""
    if isinstance(batch, torch.Tensor):
        return 1
    parts: Any = batch.values() if isinstance(batch, dict) else batch
    is_nested = isinstance(batch, dict | list | tuple)
    return sum(map(count_tensors, parts)) if is_nested else 0
