"""Measure the memory that a worker stops sharing with its parent in a pass over a DataLoader.

At first, a forked worker shares all memory of its parent. When the worker writes to a page, it gets
a copy of the page. A reading takes milliseconds, so only one worker reads its memory, and only in a
few passes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

# A script's process may import this module while torch.utils.data itself is still being imported.
from torch.utils.data._utils.worker import get_worker_info

from fastloop.core.spans import now_ns
from fastloop.explain.attach.reading_allowance import Allowance

FREE_NS = 20_000_000
"""Nanoseconds that a process may spend on readings of its memory from the start. A single reading
takes 12 ms in a process that has imported torch."""
GROWTH, LEAST_NS = 4, 100_000_000
"""After the reading at the start of a pass, the next one comes LEAST_NS nanoseconds later. Each
further one comes when the pass has lasted GROWTH times as long as at the reading before."""
ALLOWANCE = Allowance(FREE_NS)
"""The time that this process may spend on readings of its memory."""


class MemoryTurns:
    """Chooses the passes in which a worker reads its memory.

    These are the first pass with workers, and later passes. A later pass is chosen when the loop's
    process has run GROWTH times as long as at the start of the workers of the pass chosen before.
    """

    def __init__(self) -> None:
        self.process_id = self.start_ns = self.next_ns = 0

    def open(self) -> None:
        """Begin to count the time; called in the process that starts the workers."""
        self.process_id = os.getpid()
        self.start_ns = now_ns()

    def end_turn(self) -> None:
        """Note that the workers of a pass have started."""
        if now_ns() >= self.next_ns:
            self.next_ns = self.start_ns + GROWTH * (now_ns() - self.start_ns)

    def has_turn(self) -> bool:
        """True in the first worker of a chosen pass, if a fork has started the worker.

        Only a fork shares its parent's memory. One worker suffices to measure it.
        """
        info = get_worker_info()
        is_fork = self.start_ns > 0 and self.process_id != os.getpid()
        return info is not None and info.id == 0 and is_fork and now_ns() >= self.next_ns


MEMORY_TURNS = MemoryTurns()
"""The choice of passes in this process, which its forked workers inherit."""


@dataclass
class SharedMemory:
    """The amount of memory that this process has stopped sharing since a pass began."""

    first_bytes: int | None = None
    """Bytes shared at the first reading; None: there was none, and no later reading follows."""
    next_ns: int = 0
    """Time of the next reading, by the clock of now_ns()."""
    unshared_bytes: int = 0
    """Bytes by which the shared memory had shrunk at the last reading."""
    elapsed_ns: int = 1
    """Nanoseconds from the start of the pass to the last reading. 1 before a later reading, so that
    unshared_bytes / elapsed_ns is 0."""

    def begin(self) -> None:
        """Take the first reading, if this process is to read its memory in this pass."""
        if MEMORY_TURNS.has_turn() and ALLOWANCE.has_left():
            with ALLOWANCE.attempt_reading():
                self.first_bytes = _read_shared_bytes()
                self.next_ns = now_ns() + LEAST_NS

    def read(self, start_ns: int) -> None:
        """Take a later reading if it is due.

        start_ns: time of the start of the pass, by the clock of now_ns().
        """
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
    """Bytes of memory that this process shares with its parent or other forks of its parent.

    None if the system does not report them.
    """
    with suppress(OSError), open("/proc/self/smaps_rollup") as file:
        # The file counts in kB. Shared clean pages do not count, as they are those of files.
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Shared_Dirty"))
    return None
