"""Work on all usable cores for a given time, to measure the limits of the machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fastloop.core.cgroup import usable_cores
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.torch_threads import keep_to_one_torch_thread
from fastloop.processes.rank_group import local_world_size

MIN_BUDGET_S, MAX_BUDGET_S = 0.05, 1.0
"""Measuring a limit takes as long as the timed window, within these bounds."""


def budget_ns(window_s: float) -> int:
    """Nanoseconds for measuring a limit next to a window of that length."""
    return int(1e9 * min(MAX_BUDGET_S, max(MIN_BUDGET_S, window_s)))


def cores_of_rank() -> int:
    """Number of cores on which this process may work; the ranks of a node share its cores."""
    return max(1, usable_cores() // local_world_size())


def rate_on_cores(work: Callable[[int, int], int], cores: int, duration_ns: int) -> float:
    """Items per second of all threads together, one on each core.

    work: takes the thread's number and the clock value at which to stop, and returns the number of
    items that it has done.
    """
    # A thread finishes the item that it is working on when the time is up, so that each thread's
    # rate is taken over its own time.
    with ThreadPoolExecutor(cores, initializer=keep_to_one_torch_thread) as pool:
        start_ns = now_ns()

        def rate(thread: int) -> float:
            count = work(thread, start_ns + duration_ns)
            return count / seconds_between(start_ns, now_ns())

        return sum(pool.map(rate, range(cores)))
