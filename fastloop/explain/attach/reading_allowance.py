"""Limit the time that fastloop attach's probe spends in a script on reading counters and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fastloop.core.spans import cpu_ns, now_ns

MOST_COST = 0.002
"""Share of a process's time that each kind of reading may take in the long run. All kinds together,
and recording the events of each batch, must take less than 2 % of a script's time."""


class Allowance:
    """The CPU time that this process may spend on readings of one kind.

    It begins with a credit, and grows by MOST_COST of the time that passes.
    """

    def __init__(self, most_ns: int) -> None:
        """Begin with a credit of most_ns nanoseconds, the most that is counted for a reading."""
        self.most_ns = most_ns
        self.process_id = self.start_ns = self.spent_ns = 0

    def has_left(self, times: int = 1) -> bool:
        """True if this process may take another reading.

        times: number of times that most_ns is granted as credit.
        """
        # A forked process has an allowance of its own, of which nothing is spent yet.
        if self.process_id != os.getpid():
            self.process_id = os.getpid()
            self.start_ns = now_ns()
            self.spent_ns = 0
        return self.spent_ns < times * self.most_ns + MOST_COST * (now_ns() - self.start_ns)

    @contextmanager
    def attempt_reading(self) -> Iterator[None]:
        """A context for one reading, the CPU time of which counts as spent.

        An OSError in the context ends the reading, and is not raised further.
        """
        start_ns = cpu_ns()
        try:
            yield
        # A reading fails, for example, if the process has no file descriptor left.
        except OSError:
            pass
        finally:
            # Python may collect garbage during a reading, which takes 40 ms in a process that has
            # imported torch. This is no cost of the reading, so at most most_ns is counted.
            self.spent_ns += min(cpu_ns() - start_ns, self.most_ns)
