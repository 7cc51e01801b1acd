"""The probe of the memory that a worker shares with its parent, which shrinks as the worker copies
the pages to which it writes.

A reading takes milliseconds. Therefore only one worker reads its memory, and only in a few passes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

# A process that is attached to may import this module before torch.utils.data is complete.
from torch.utils.data._utils.worker import get_worker_info

from fastloop.core.spans import now_ns
from fastloop.explain.attach.reading_allowance import Allowance

FREE_NS = 20_000_000
"""Nanoseconds that a process may spend at once on readings of its memory: a single one takes 12 ms
in a process that has imported torch."""
GROWTH, LEAST_NS = 4, 100_000_000
"""The first reading comes LEAST_NS after the beginning of a pass, and each further one when the
pass has lasted GROWTH times as long."""
ALLOWANCE = Allowance(FREE_NS)
"""The time that this process may spend on readings of its memory."""


class MemoryTurns:
    """Chooses the passes in which a worker's memory is read, which takes milliseconds: the first
    pass with workers, and then one each time that this process has run GROWTH times as long."""

    def __init__(self) -> None:
        self.process_id = self.start_ns = self.next_ns = 0

    def open(self) -> None:
        """Begin to count, in the process that is to start the workers."""
        self.process_id = os.getpid()
        self.start_ns = now_ns()

    def end_turn(self) -> None:
        """Note that the workers of a pass have started."""
        if now_ns() >= self.next_ns:
            self.next_ns = self.start_ns + GROWTH * (now_ns() - self.start_ns)

    def has_turn(self) -> bool:
        """True in the first worker of a pass that has its turn, if it is a fork of this process:
        only a fork copies its parent's memory, and one worker shows how much."""
        info = get_worker_info()
        is_fork = self.start_ns > 0 and self.process_id != os.getpid()
        return info is not None and info.id == 0 and is_fork and now_ns() >= self.next_ns


MEMORY_TURNS = MemoryTurns()
"""The turns of this process and of its workers."""


@dataclass
class SharedMemory:
    """The amount of memory that this process has stopped sharing since a pass began."""

    first_bytes: int | None = None
    """Bytes that it shared at first; None: they were not read, and no later reading follows."""
    next_ns: int = 0
    """Time of the next reading."""
    unshared_bytes: int = 0
    """Bytes that it no longer shared at the last reading."""
    elapsed_ns: int = 1
    """Nanoseconds from the start of the pass to the last reading; 1 without a reading, so that the
    rate is 0."""

    def begin(self) -> None:
        """Take the first reading, if this process has its turn."""
        if MEMORY_TURNS.has_turn() and ALLOWANCE.has_left():
            with ALLOWANCE.attempt_reading():
                self.first_bytes = _read_shared_bytes()
                self.next_ns = now_ns() + LEAST_NS

    def read(self, start_ns: int) -> None:
        """Take a further reading if it is due. start_ns: the start of the pass."""
        if self.first_bytes is None or now_ns() < self.next_ns or not ALLOWANCE.has_left():
            return
        with ALLOWANCE.attempt_reading():
            shared_bytes = _read_shared_bytes()
            elapsed_ns = now_ns() - start_ns
            self.next_ns = start_ns + GROWTH * elapsed_ns
            if shared_bytes is not None:
                self.unshared_bytes = self.first_bytes - shared_bytes
                self.elapsed_ns = elapsed_ns


def _read_shared_bytes() -> int | None:
    """Bytes of memory that this process shares with its parent or its siblings, such as the pages
    that a fork has not copied yet; None if the system does not report it."""
    with suppress(OSError), open("/proc/self/smaps_rollup") as file:
        # The file counts in kB. Clean pages do not count, as they belong to programs and files.
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Shared_Dirty"))
    return None
