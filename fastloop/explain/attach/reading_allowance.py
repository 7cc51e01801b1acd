"""The time that the probe may spend on readings of counters and of memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fastloop.core.spans import cpu_ns, now_ns

MOST_COST = 0.002
"""Share of a process's time that each kind of reading may take in the long run. All readings and
the events of each batch together must take less than 2 % of a script."""


class Allowance:
    """The time that this process may spend on readings."""

    def __init__(self, most_ns: int) -> None:
        """most_ns: upper bound charged for one reading; also the credit at the start."""
        self.most_ns = most_ns
        self.process_id = self.start_ns = self.spent_ns = 0

    def has_left(self, times: int = 1) -> bool:
        """True if there may be another reading.

        times: multiple of most_ns that is allowed as credit.
        """
        # A fork has an allowance of its own, which it has not spent yet.
        if self.process_id != os.getpid():
            self.process_id = os.getpid()
            self.start_ns = now_ns()
            self.spent_ns = 0
        return self.spent_ns < times * self.most_ns + MOST_COST * (now_ns() - self.start_ns)

    @contextmanager
    def attempt_reading(self) -> Iterator[None]:
        """A context for a reading, which counts its CPU time as spent. An OSError of the reading
        ends it without an error."""
        start_ns = cpu_ns()
        try:
            yield
        # A reading fails, for example, if the process has no file descriptor left.
        except OSError:
            pass
        finally:
            # Python may collect garbage meanwhile, which takes 40 ms in a process that has imported
            # torch, and is not part of the reading's cost.
            self.spent_ns += min(cpu_ns() - start_ns, self.most_ns)
