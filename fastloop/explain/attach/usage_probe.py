"""The probe of the limits that a loop's processes reach: counters of the threads that make batches,
of steps, and of each process, written as facts.

A fact has the totals since the start of its pass.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from fastloop.core.spans import now_ns
from fastloop.explain.attach.reading_allowance import (
    FREE_MEMORY_NS,
    FREE_NS,
    LEAST_MEMORY_NS,
    MEMORY_GROWTH,
    MEMORY_TURNS,
    OF_MEMORY,
    OF_PROCESS,
    OF_THREADS,
)
from fastloop.explain.attach.usage_counters import (
    HAS_COUNTERS,
    ProcessCounters,
    ThreadTotals,
    read_limits,
    read_process,
    read_shared_bytes,
    read_thread,
)
from fastloop.observe.event_log import EventLog

GROWTH, LEAST_NS = 1.5, 20_000_000
"""A process is read again if its pass has lasted GROWTH times as long as at the last reading, and
LEAST_NS longer."""


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
                    self.shared_bytes = read_shared_bytes()
                    self.memory_ns = now_ns() + LEAST_MEMORY_NS
        if OF_THREADS.has_left():
            with OF_THREADS.spend():
                self.before = read_thread()

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
                    part = read_thread().since(before)
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
            shared_bytes, elapsed_ns = read_shared_bytes(), now_ns() - start.at_ns
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
            fact |= {"open_files": self.most_open} | read_limits()
        self.log.add_fact(**fact)
