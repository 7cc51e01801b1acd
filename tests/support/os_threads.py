"""Threads of this process as counted by the operating system, Python's and native ones."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def count_threads() -> int:
    return psutil.Process().num_threads()


def falls_to(before: int, count_threads: Callable[[], int] = count_threads) -> bool:
    """True once the count is at most `before`; ended threads take a moment to disappear."""
    for _ in range(6000):
        if count_threads() <= before:
            return True
        time.sleep(0.01)
    return False
