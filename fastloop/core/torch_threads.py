"""Limits on torch's intra-op threads, which compete with threads that gather rows.

OpenMP's threads spin for milliseconds after an operation, waiting for the next one: torch.randperm
of 60,000 indices kept a second core busy for half of the epoch whose rows other threads gathered
(28 ms instead of 19).
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
    """Run torch's operations of the calling thread on that thread alone from now on."""
    torch.get_num_threads()  # otherwise torch resets the number at the thread's first operation
    _setter()(1)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch's operations of the calling thread on that thread alone inside the context."""
    before, set_ = torch.get_num_threads(), _setter()
    set_(1)
    try:
        yield
    finally:
        set_(before)


@cache
def _setter() -> Callable[[int], None]:
    """OpenMP's omp_set_num_threads, which affects the calling thread only.

    torch.set_num_threads also sets the initial number of threads that torch does not know yet: a
    thread started meanwhile would keep one intra-op thread for good. A build of torch without
    OpenMP has no spinning threads, and nothing is set there.
    """
    before = torch.get_num_threads()
    for library in (None, torch._C.__file__):  # None: a preloaded OpenMP, as by Intel's launcher
        try:  # PyDLL keeps the GIL
            setter = ctypes.PyDLL(library).omp_set_num_threads
        except (OSError, AttributeError):
            continue
        setter.argtypes, setter.restype = [ctypes.c_int], None
        setter(before + 1)
        is_torchs = torch.get_num_threads() == before + 1
        setter(before)
        if is_torchs:
            return setter
    return _set_nothing


def _set_nothing(number: int) -> None:  # noqa: ARG001 - called in place of OpenMP's function
    return


def iterate_single_threaded(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, each computed inside one_torch_thread()."""
    iterator = iter(items)
    while True:
        with one_torch_thread():
            item = next(iterator, END)
        if item is END:
            return
        yield item  # pyright: ignore[reportReturnType]
