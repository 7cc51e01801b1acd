"""Give a loader's threads access to a Dataset: all at once, in turns, or each to a pickled copy.

By default no two threads ever use the same object at the same time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.pickle_around import pickle_around, unpickle_around

CollateFn = Callable[[Any], Tree]


class UserCode(NamedTuple):
    """A user's code that makes batches: a Dataset and its collate_fn."""

    dataset: Any
    collate_fn: CollateFn


OpenUserCode = Callable[[], AbstractContextManager[UserCode]]
"""Opens the code for the calling thread, while it makes one batch."""


class _Lock:
    """A lock that can be held weakly."""

    def __init__(self) -> None:
        self.lock = threading.RLock()


_LOCKS: WeakValueDictionary[int, _Lock] = WeakValueDictionary()
"""id of the innermost Dataset -> its lock, which lives as long as the Dataset's readers."""


def _renew_locks() -> None:
    """Make new locks for a fork: the threads that hold the old ones are missing there."""
    for holder in list(_LOCKS.values()):
        holder.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def share(code: UserCode) -> OpenUserCode:
    """Access to a Dataset by all threads at once: it is thread-safe."""
    return lambda: nullcontext(code)


def take_turns(code: UserCode) -> OpenUserCode:
    """Access to a Dataset by all threads, which read it one batch at a time.

    Loaders of datasets that wrap the same Dataset, such as two Subsets of it, share the lock. So
    does a thread of an earlier epoch that has not ended.
    """
    innermost = code.dataset
    while (wrapped := _dataset_within(innermost)) is not None:
        innermost = wrapped
    # `code` keeps the Dataset alive, so no other object can get its id.
    holder = _LOCKS.setdefault(id(innermost), _Lock())

    @contextmanager
    def open_code() -> Iterator[UserCode]:
        with holder.lock:
            yield code

    return open_code


def _dataset_within(dataset: Any) -> Any:
    """The attribute `dataset` that a Subset and other wrappers have, if it is there already.

    A property of this name is not asked: it may open a file, which worker processes would share.
    """
    wrapped = getattr(dataset, "__dict__", {}).get("dataset")
    return None if wrapped is dataset else wrapped


def copy_for_threads(code: UserCode) -> OpenUserCode:
    """A copy of the Dataset for each thread except the calling one, which gets the Dataset itself.

    It is pickled once, here, and each thread unpickles it. Threads share read-only memory maps and
    functions without a closure. Raises ValueError if the Dataset can't be pickled; opening raises
    ValueError if it can't be unpickled.
    """
    data, shared = _pickle(code)
    originals = take_turns(code)
    owner = threading.get_ident()
    local = threading.local()

    def open_code() -> AbstractContextManager[UserCode]:
        if threading.get_ident() == owner:
            return originals()
        if not hasattr(local, "code"):
            try:
                local.code = unpickle_around(data, shared)
            except Exception as error:
                # Reading a pickle may fail although writing it did not: torch can't restore tensors
                # of some dtypes.
                raise ValueError(_describe(code, error)) from error
        return nullcontext(local.code)

    return open_code


def _pickle(code: UserCode) -> tuple[bytes, list[Any]]:
    """The pickled code, and the objects that their copies share."""
    shared: list[Any] = []
    try:
        data = pickle_around(code, lambda leaf: _share_leaf(leaf, shared))
    except Exception as error:
        raise ValueError(_describe(code, error)) from error
    return data, shared


def _share_leaf(leaf: Any, shared: list[Any]) -> int | None:
    # A pickled memmap would be a copy in memory, and a lambda can't be pickled.
    is_frozen = isinstance(leaf, np.memmap) and not leaf.flags.writeable
    if not is_frozen and not (isinstance(leaf, FunctionType) and leaf.__closure__ is None):
        return None
    shared.append(leaf)
    return len(shared) - 1


def _describe(code: UserCode, error: Exception) -> str:
    name = type(code.dataset).__name__
    reason = f"{type(error).__name__}: {error}"
    allowed = "num_threads=1 reads the Dataset itself, and so do all threads with thread_safe=True"
    problem = f"num_threads gives each thread a pickled copy of {name}, which fails ({reason})"
    return f"{problem}; {allowed}"
