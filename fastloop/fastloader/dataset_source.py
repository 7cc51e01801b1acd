"""Sources of samples that are read one by one, such as torch's map-style Datasets, and collated.

Several threads may read a Dataset. By default no two of them ever use the same object: each has a
pickled copy, or they take turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import getitem
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from fastloop.fastloader.column_source import ColumnSource, seed_columns
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import FailedBatch, refuse_stop, try_batch
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.pickle_around import pickle_around, unpickle_around
from fastloop.fastloader.sample_draws import COLLATE, SAMPLE, Begin, SampleDraws

CollateFn = Callable[[Any], Tree]


class Parts(NamedTuple):
    """The code of a user that makes batches: a Dataset and its collate_fn."""

    dataset: Any
    collate_fn: CollateFn


Open = Callable[[], AbstractContextManager[Parts]]
"""Opens the parts for the calling thread, while it makes one batch."""


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


def share(parts: Parts) -> Open:
    """Access to a Dataset by all threads at once: it is thread-safe."""
    return lambda: nullcontext(parts)


def take_turns(parts: Parts) -> Open:
    """Access to a Dataset by all threads, which read it one batch at a time.

    Loaders of datasets that wrap the same Dataset, such as two Subsets of it, share the lock. So
    does a thread of an earlier epoch that has not ended.
    """
    innermost = parts.dataset
    while (wrapped := _dataset_within(innermost)) is not None:
        innermost = wrapped
    # `parts` keeps the Dataset alive, so no other object can get its id.
    holder = _LOCKS.setdefault(id(innermost), _Lock())

    @contextmanager
    def open_parts() -> Iterator[Parts]:
        with holder.lock:
            yield parts

    return open_parts


def _dataset_within(dataset: Any) -> Any:
    """The attribute `dataset` that a Subset and other wrappers have, if it is there already.

    A property of this name is not asked: it may open a file, which worker processes would share.
    """
    wrapped = getattr(dataset, "__dict__", {}).get("dataset")
    return None if wrapped is dataset else wrapped


def copy_for_threads(parts: Parts) -> Open:
    """A copy of the Dataset for each thread but the calling one, which gets the Dataset itself.

    It is pickled once, here, and each thread unpickles it. Threads share read-only memory maps and
    functions without a closure. Raises ValueError if the Dataset can't be pickled; opening raises
    it if the Dataset can't be unpickled.
    """
    data, shared = _pickle(parts)
    originals, owner, local = take_turns(parts), threading.get_ident(), threading.local()

    def open_parts() -> AbstractContextManager[Parts]:
        if threading.get_ident() == owner:
            return originals()
        if not hasattr(local, "parts"):
            try:
                local.parts = unpickle_around(data, shared)
            except Exception as error:
                # Reading a pickle may fail although writing it did not: torch can't restore tensors
                # of some dtypes.
                raise ValueError(_describe(parts, error)) from error
        return nullcontext(local.parts)

    return open_parts


def _pickle(parts: Parts) -> tuple[bytes, list[Any]]:
    """The pickled parts, and the objects that their copies share."""
    shared: list[Any] = []
    try:
        data = pickle_around(parts, lambda leaf: _share_leaf(leaf, shared))
    except Exception as error:
        raise ValueError(_describe(parts, error)) from error
    return data, shared


def _share_leaf(leaf: Any, shared: list[Any]) -> int | None:
    # A pickled memmap would be a copy in memory, and a lambda can't be pickled.
    is_frozen = isinstance(leaf, np.memmap) and not leaf.flags.writeable
    if not is_frozen and not (isinstance(leaf, FunctionType) and leaf.__closure__ is None):
        return None
    shared.append(leaf)
    return len(shared) - 1


def _describe(parts: Parts, error: Exception) -> str:
    name, reason = type(parts.dataset).__name__, f"{type(error).__name__}: {error}"
    allowed = "num_threads=1 reads the Dataset itself, and so do all threads with thread_safe=True"
    problem = f"num_threads gives each thread a pickled copy of {name}, which fails ({reason})"
    return f"{problem}; {allowed}"


@dataclass(frozen=True)
class DatasetSource:
    """A map-style dataset, read by sample, or by batch if it has `__getitems__`.

    The loader's threads read it. This pays if reading releases the GIL, as reading files, decoding
    and large numpy operations do.
    """

    parts: Parts
    is_unbatched: bool
    """True: each sample is delivered by itself, instead of batches."""
    open: Open
    """Gives the parts to the thread that makes a batch."""
    is_thread_safe: bool = False
    """True if threads may read the dataset at the same time."""
    reads_lists: bool = False
    """True: the dataset itself makes a batch of a list of indices."""
    begin: Begin | None = None
    """A function that is called before a sample is read (SAMPLE) or a batch is collated (COLLATE),
    as both may draw random numbers. It gets this kind and the samples' indices. None: draws are not
    seeded."""

    def __len__(self) -> int:
        return len(self.parts.dataset)

    def batches(self, group: Sequence[np.ndarray]) -> list[Tree | FailedBatch]:
        """The results of collate_fn. Several threads call this concurrently."""
        with self.open() as (dataset, collate_fn):
            return [
                try_batch(self._batch, dataset, collate_fn, indices.tolist()) for indices in group
            ]

    def batch(self, indices: np.ndarray) -> Tree:
        """The result of collate_fn; raises the error of a sample."""
        with self.open() as (dataset, collate_fn):
            return self._batch(dataset, collate_fn, indices.tolist())

    def _batch(self, dataset: Any, collate_fn: CollateFn, indices: list[int]) -> Tree:
        samples = self._samples(dataset, indices)
        self._begin(COLLATE, indices)
        try:
            return collate_fn(samples)
        except StopIteration as error:
            # A StopIteration, here and below, would end the loop as if there were no more batches.
            raise refuse_stop("the collate_fn", indices) from error

    def _samples(self, dataset: Any, indices: list[int]) -> Any:
        """The argument of the collate_fn."""
        getitems = None if self.is_unbatched else getattr(dataset, "__getitems__", None)
        if self.reads_lists:
            getitems = partial(getitem, dataset)
        # Each sample has its own seed; a batch that the dataset reads at once has one seed.
        if not getitems:
            samples = self._read_each(dataset, indices)
            return samples[0] if self.is_unbatched else samples
        self._begin(SAMPLE, indices)
        try:
            return getitems(indices)
        except StopIteration as error:
            raise refuse_stop("the reading", indices) from error

    def _read_each(self, dataset: Any, indices: list[int]) -> list[Any]:
        # The loop calls nothing of its own but `begin`: a call takes as long as a cheap sample.
        begin, samples, index = self.begin, [], 0
        try:
            for index in indices:
                if begin is not None:
                    begin(SAMPLE, (index,))
                samples.append(dataset[index])
        except StopIteration as error:
            raise refuse_stop("the reading", (index,)) from error
        return samples

    def _begin(self, kind: int, indices: Sequence[int]) -> None:
        if self.begin is not None:
            self.begin(kind, indices)


BatchSource = ColumnSource | DatasetSource


def prepare_source(
    source: BatchSource | StreamBatches, num_threads: int, draws: SampleDraws
) -> BatchSource | StreamBatches:
    """The source for an epoch: with seeds, and a Dataset copied for threads if they don't share it.

    An iterable's batches are returned as they are. Raises ValueError if a Dataset can't be copied.
    """
    if isinstance(source, ColumnSource):
        return seed_columns(source, draws.epoch_seed)
    if not isinstance(source, DatasetSource):
        return source
    is_copied = num_threads > 1 and not source.is_thread_safe
    opened = copy_for_threads(source.parts) if is_copied else source.open
    return replace(source, begin=draws.begin, open=opened)
