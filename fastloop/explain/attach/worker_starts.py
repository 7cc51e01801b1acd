"""Estimate the time that a DataLoader's workers take to start and to end.

The time is measured on similar processes, which this process starts. A spawned process imports the
module of its function, and the import counts as a part of the start: so this module is alone, and
imports little.
"""

from __future__ import annotations

import multiprocessing
from functools import cache
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from statistics import median
from typing import Any

from fastloop.core.spans import now_ns

TRIES_OF_FORKS = 3
"""Number of tries if workers are forked; their median counts."""
DATALOADER_FACTOR = 2.0
"""A DataLoader's workers take up to this many times as long as these processes: they also get
queues of their own, a dataset and a seed, and their memory is copied as it is written to."""


def seconds_of_workers(count: int, start_method: str) -> float:
    """Seconds that `count` workers take to start and to end, without any batch."""
    one_s, two_s = _time_workers(1, start_method), _time_workers(2, start_method)
    # Workers start one after the other: each further worker takes as long as the second one.
    return max(one_s, one_s + (two_s - one_s) * (count - 1))


@cache
def _time_workers(count: int, start_method: str) -> float:
    # A new interpreter for each worker takes seconds: one try is enough.
    tries = TRIES_OF_FORKS if start_method == "fork" else 1
    return DATALOADER_FACTOR * median([_try_workers(count, start_method) for _ in range(tries)])


def _try_workers(count: int, start_method: str) -> float:
    # Most findings need no try, so torch is not imported at the top. It is imported before the
    # clock is read, so that a fork copies the memory of a process with torch, like the script's.
    import torch  # noqa: F401

    context: Any = multiprocessing.get_context(start_method)
    started = context.Queue()
    ends = context.Event()
    start_ns = now_ns()
    workers = [
        context.Process(target=_work, args=(started, ends), daemon=True) for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    for _ in workers:
        started.get()
    ends.set()
    for worker in workers:
        worker.join()
    return (now_ns() - start_ns) / 1e9


def _work(started: Queue[None], ends: Event) -> None:
    import torch

    torch.set_num_threads(1)
    started.put(None)
    ends.wait()
