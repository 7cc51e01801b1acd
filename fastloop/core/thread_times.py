"""CPU time of a thread, and the time in which the thread waits for a core, as Linux counts them."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple


class ThreadTime(NamedTuple):
    """Times of a thread in nanoseconds."""

    cpu_ns: int
    """Time in which the thread had a core."""
    delay_ns: int
    """Time in which the thread could run, but waited for a core."""

    @property
    def runnable_ns(self) -> int:
        """Time in which the thread could run, whether it had a core or not."""
        return self.cpu_ns + self.delay_ns

    def since(self, before: ThreadTime) -> ThreadTime:
        """The times that have passed since an earlier reading."""
        return ThreadTime(self.cpu_ns - before.cpu_ns, self.delay_ns - before.delay_ns)


def read_schedule(folder: str) -> ThreadTime:
    """The times of a thread since its start.

    folder: the folder of the thread in /proc. Raises OSError if the system does not count these
    times; only Linux counts them.
    """
    # Documentation/scheduler/sched-stats.rst of Linux, "/proc/<pid>/schedstat".
    with open(f"{folder}/schedstat", "rb") as file:
        spent_ns, delay_ns, _ = file.read().split()
    return ThreadTime(int(spent_ns), int(delay_ns))


def core_delay_ns() -> int:
    """Nanoseconds for which the calling thread has waited for a core since its start.

    Returns 0 if the system does not count them.
    """
    with suppress(OSError):
        return read_schedule("/proc/thread-self").delay_ns
    return 0


def slowdown_by_load() -> float:
    """Factor by which waiting for a core has slowed down the calling thread since its start.

    Returns 1 if the system does not count the time of waiting.
    """
    with suppress(OSError):
        spent = read_schedule("/proc/thread-self")
        return spent.runnable_ns / max(1, spent.cpu_ns)
    return 1.0
