"""The time that readings of counters may take, so that observing a script does not slow it down.

Readings become rarer as a pass goes on, and together they take a small share of a process's time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# A process that is attached to may import this module before torch.utils.data is complete.
from torch.utils.data._utils.worker import get_worker_info

from fastloop.core.spans import cpu_ns, now_ns

FREE_NS = 1_500_000
"""Nanoseconds that a process may spend at once on readings of its threads, and again on readings of
the process itself. Each worker may spend as much, in a first epoch of perhaps 200 ms."""
FREE_MEMORY_NS = 20_000_000
"""The same for readings of its memory: a single one takes 12 ms in a process that has imported
torch."""
MOST_COST = 0.002
"""Share of a process's time that each kind of reading may take later. All readings and the events
of each batch together must take less than 2 % of a script."""
MEMORY_GROWTH, LEAST_MEMORY_NS = 4, 100_000_000
"""Memory, of which a reading takes milliseconds, is read first after LEAST_MEMORY_NS, and again
each time that MEMORY_GROWTH times as long has passed."""


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
