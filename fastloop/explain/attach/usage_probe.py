"""Record counters of the threads that make batches or run steps, and of their processes, as facts.

The counters show which limits a loop's processes reach, such as that of cores. A fact, which is a
dictionary in the log, has the totals since the start of its pass. Readings become rarer as
a pass goes on, and together they take a small share of a process's time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from fastloop.core.spans import now_ns
from fastloop.explain.attach.memory_probe import SharedMemory
from fastloop.explain.attach.process_counters import (
    HAS_COUNTERS,
    ProcessCounters,
    ThreadTotals,
    read_limits,
    read_process,
    read_thread,
)
from fastloop.explain.attach.reading_allowance import Allowance
from fastloop.observe.event_log import EventLog

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
        """Begin a fetch or a step. is_first: True for the first one of the pass."""
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
