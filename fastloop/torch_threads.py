"""Torch's own threads, kept out of where others gather.

OpenMP's threads go on spinning for milliseconds after an operation that they shared, in case that
another one comes: torch.randperm of 60,000 indices kept a second core busy for half of the epoch
whose rows other threads then gathered (28 ms instead of 19).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")
END = object()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Inside of this, torch's operations of this thread are shared with no other one."""
    before = torch.get_num_threads()
    if before == 1:  # to set it is to set what threads begin with that torch has not met yet, too
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def made_on_one(ones: Iterable[T]) -> Iterator[T]:
    """The same, each of them made inside of one_torch_thread()."""
    left = iter(ones)
    while True:
        with one_torch_thread():
            one = next(left, END)
        if one is END:
            return
        yield one  # pyright: ignore[reportReturnType]
