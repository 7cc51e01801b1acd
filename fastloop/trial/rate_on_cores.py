"""Run work on all usable cores for a given time, to measure the limits of the machine."""

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
    """Run `work` in one thread per core, and return the items per second of all threads together.

    The rate is the number of threads times their mean rate: all items over the sum of the threads'
    times. Each thread does at least one item. If an item takes longer than the duration, the rate
    rests on that one item of each thread.

    work: takes the thread's number and the clock value at which to stop, and returns the number of
    items that it has done.
    """
    # When the time is up, a thread still finishes its item, so each thread's own time counts. The
    # sum of the threads' rates would be too high if each did few items: a thread that happens to
    # get a small item would count for more than a thread that gets a large item.
    with ThreadPoolExecutor(cores, initializer=keep_to_one_torch_thread) as pool:
        start_ns = now_ns()

        def run(thread: int) -> tuple[int, float]:
            count = work(thread, start_ns + duration_ns)
            return count, seconds_between(start_ns, now_ns())

        counts, seconds = zip(*pool.map(run, range(cores)), strict=True)
    return cores * sum(counts) / sum(seconds)
