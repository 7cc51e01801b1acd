"""Torch's own threads, kept out of where others gather.

OpenMP's threads go on spinning for milliseconds after an operation that they shared, in case that
another one comes: torch.randperm of 60,000 indices kept a second core busy for half of the epoch
whose rows other threads then gathered (28 ms instead of 19).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")
END = object()


def keep_to_one_torch_thread() -> None:
    """torch's operations of the calling thread are shared with no other one from now on."""
    torch.get_num_threads()  # or torch would set this thread's once more at its first operation
    _setter()(1)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Inside of this, torch's operations of this thread are shared with no other one."""
    before, set_ = torch.get_num_threads(), _setter()
    set_(1)
    try:
        yield
    finally:
        set_(before)


@cache
def _setter() -> Callable[[int], None]:
    """OpenMP's own call, which sets the calling thread's number and no other.

    torch.set_num_threads also sets what threads begin with that torch has not met yet: one that
    someone starts in that moment would have one thread for good. A build of torch without OpenMP
    has no threads that spin, and nothing is set there.
    """
    before = torch.get_num_threads()
    for library in (None, torch._C.__file__):  # None: what was preloaded, as Intel's launcher does
        try:  # PyDLL keeps the interpreter's lock
            found = ctypes.PyDLL(library).omp_set_num_threads
        except (OSError, AttributeError):
            continue
        found.argtypes, found.restype = [ctypes.c_int], None
        found(before + 1)
        is_torchs = torch.get_num_threads() == before + 1
        found(before)
        if is_torchs:
            return found
    return _nothing


def _nothing(number: int) -> None:  # noqa: ARG001 - in the place of OpenMP's
    return


def made_on_one(ones: Iterable[T]) -> Iterator[T]:
    """The same, each of them made inside of one_torch_thread()."""
    left = iter(ones)
    while True:
        with one_torch_thread():
            one = next(left, END)
        if one is END:
            return
        yield one  # pyright: ignore[reportReturnType]
