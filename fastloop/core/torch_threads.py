"""Limit torch's intra-op threads, which compete for cores with threads that gather rows.

An intra-op thread does a part of an operation, and belongs to OpenMP. OpenMP's threads spin for
milliseconds after an operation, waiting for the next one. In an epoch in which other threads
gathered rows, a torch.randperm of 60,000 indices kept a second core busy for half of the time: the
epoch took 28 ms instead of 19.
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
"""Marks the end of an iterator."""


def keep_to_one_torch_thread() -> None:
    """Run torch's operations of the calling thread on that thread alone from now on."""
    # get_num_threads initializes torch's state of the thread. Otherwise the first operation of the
    # thread would initialize this state, and set the number back.
    torch.get_num_threads()
    _setter()(1)


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch's operations of the calling thread on that thread alone inside the context."""
    before = torch.get_num_threads()
    set_ = _setter()
    set_(1)
    try:
        yield
    finally:
        set_(before)


@cache
def _setter() -> Callable[[int], None]:
    """The omp_set_num_threads of torch's OpenMP library, which affects the calling thread only.

    For a build of torch without OpenMP, in which no thread spins, a function that does nothing.
    """
    # torch.set_num_threads is not used, because it would also set the initial number of each thread
    # that has not used torch yet. A thread that starts meanwhile would keep that number.
    before = torch.get_num_threads()
    # None stands for the symbols of the process, such as an OpenMP that Intel's launcher has
    # preloaded. PyDLL keeps the GIL, which a call of a few nanoseconds need not release.
    for library in (None, torch._C.__file__):
        try:
            setter = ctypes.PyDLL(library).omp_set_num_threads
        except (OSError, AttributeError):
            continue
        setter.argtypes = [ctypes.c_int]
        setter.restype = None
        # A process may hold several OpenMP libraries, but torch obeys only one of them.
        setter(before + 1)
        is_torchs = torch.get_num_threads() == before + 1
        setter(before)
        if is_torchs:
            return setter
    return _set_nothing


def _set_nothing(number: int) -> None:  # noqa: ARG001 - called in place of OpenMP's function
    return


def iterate_single_threaded(items: Iterable[T]) -> Iterator[T]:
    """Yield the items, and compute each one inside one_torch_thread()."""
    # The context ends before each yield, so that the consumer's own operations keep their threads.
    iterator = iter(items)
    while True:
        with one_torch_thread():
            item = next(iterator, END)
        if item is END:
            return
        yield item  # pyright: ignore[reportReturnType]
