"""Run work on all usable cores for a given time, to measure the limits of the machine."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from fastloop.core.cgroup import usable_cores
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.torch_threads import keep_to_one_torch_thread
from fastloop.processes.rank_group import local_world_size

MIN_BUDGET_S, MAX_BUDGET_S = 0.05, 1.0
"""Minimum and maximum seconds for measuring a limit. Between these bounds, the measurement takes as
long as the window, which is the timed part of a trial."""


def budget_ns(window_s: float) -> int:
    """Nanoseconds for measuring a limit next to a window of `window_s` seconds."""
    return int(1e9 * min(MAX_BUDGET_S, max(MIN_BUDGET_S, window_s)))


def cores_of_rank() -> int:
    """Number of cores for this process; the ranks (processes) of a node share the node's cores."""
    return max(1, usable_cores() // local_world_size())


def rate_on_cores(work: Callable[[int, int], int], cores: int, duration_ns: int) -> float:
    """Run `work` in one thread per core, and return the items per second of all threads together.

    The mean rate of a thread is the number of all items, divided by the sum of the threads'
    seconds. The result is this mean rate times the number of threads. Each thread does at least one
    item, even if the item takes longer than `duration_ns`.

    work: called with the number of the thread and the clock value, in nanoseconds, at which to
    stop; returns the number of items that it has done. cores: number of threads.
    """
    # A thread finishes its item after the time is up, so each thread's own time counts. If threads
    # do few items, the sum of their rates would be too high: a thread that happens to get a small
    # item would count for more than a thread that gets a large item.
    with ThreadPoolExecutor(cores, initializer=keep_to_one_torch_thread) as pool:
        start_ns = now_ns()

        def run(thread: int) -> tuple[int, float]:
            count = work(thread, start_ns + duration_ns)
            return count, seconds_between(start_ns, now_ns())

        counts, seconds = zip(*pool.map(run, range(cores)), strict=True)
    return cores * sum(counts) / sum(seconds)
