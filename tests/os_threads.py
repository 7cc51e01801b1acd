"""Threads of this process as the system counts them, whoever has started them."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def counted() -> int:
    return psutil.Process().num_threads()


def fell_to(before: int, counted: Callable[[], int] = counted) -> bool:
    """Whether there are no more than then; a thread that has ended takes a moment to be gone."""
    for _ in range(500):
        if counted() <= before:
            return True
        time.sleep(0.01)
    return False
