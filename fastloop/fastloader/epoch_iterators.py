"""Iterators over an epoch's batches that the loop gets, each with a length and a `close`.

SharedBatches delivers the batches that a generator yields, StreamedBatches those of the native
core, and LaterBatches those of an epoch that begins only when the first batch is asked for. Several
threads may use an iterator at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sized
from itertools import chain
from threading import RLock, get_ident
from typing import Any

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import FailedBatch


class EpochIterator:
    """An iterator over an epoch's batches that has a length, as DataLoader's iterator has."""

    order: Sized
    """The order of the epoch, which `give_length` assigns."""

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch; raises TypeError if it is not known."""
        return len(self.order)


class SharedBatches(EpochIterator):
    """An iterator over an epoch's batches that several threads may use at the same time.

    In place of a FailedBatch, which stands for a batch that could not be made, next() raises the
    error of the FailedBatch.
    """

    def __init__(self, batches: Generator[Tree | FailedBatch, None, None]) -> None:
        # A generator raises ValueError if a thread calls next() while another thread runs it, so a
        # lock is needed. The lock is reentrant: if the thread that holds it calls next() again, for
        # example in a signal handler, the call raises that ValueError, and does not wait forever.
        self._batches = batches
        self._lock = RLock()

    def __iter__(self) -> SharedBatches:
        return self

    def __next__(self) -> Tree:
        with self._lock:
            batch = next(self._batches)
        if not isinstance(batch, FailedBatch):
            return batch
        error = batch.error
        del self, batch  # otherwise the error's traceback would keep the epoch's threads alive
        try:
            raise error
        finally:
            del error

    def close(self) -> None:
        """End the epoch, after a next() that runs in another thread."""
        with self._lock:
            self._batches.close()


class LaterBatches(EpochIterator, chain):
    """An iterator over the batches of an epoch that begins when the first batch is asked for.

    itertools.chain hands the batches on without running Python code, which would take a tenth of
    the time of a small batch.
    """

    beginning: _Beginning
    """The iterator that begins the epoch, which `begin_later` assigns."""

    def close(self) -> None:
        """End the epoch."""
        self.beginning.is_closed = True
        for batches in self.beginning.begun:
            batches.close()


class _Beginning:
    """An iterator that gives each thread one item: the same iterator over the epoch's batches.

    begin: begins the epoch, and returns this item; called when the first thread asks for it.
    """

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._lock = RLock()
        self._threads: set[int] = set()
        """Ids of the threads that have their item."""
        self.begun: list[Any] = []
        """The iterator over the epoch's batches; empty if the epoch has not begun."""
        self.is_closed = False

    def __iter__(self) -> _Beginning:
        return self

    def __next__(self) -> Iterator[Tree]:
        with self._lock:
            # chain asks for another item when the batches of the last one have ended. For a thread
            # that has had its item, this is the end of the epoch. Any other thread gets the same
            # item, and so the rest of the epoch.
            if self.is_closed or get_ident() in self._threads:
                raise StopIteration
            self._threads.add(get_ident())
            if not self.begun:
                self.begun.append(self._begin())
            return self.begun[0]


def begin_later(begin: Callable[[], Any]) -> LaterBatches:
    """An iterator over the batches of an epoch that begins when the first batch is asked for.

    begin: begins the epoch, and returns an iterator over its batches.
    """
    beginning = _Beginning(begin)
    batches: Any = LaterBatches.from_iterable(beginning)
    batches.beginning = beginning
    return batches


class StreamedBatches(EpochIterator, chain):
    """An iterator over the batches of the native core's stream, which itself has no length.

    itertools.chain hands each batch on in 2 ns, without running Python code.
    """

    def __init__(self, stream: Any) -> None:
        # chain itself takes the stream in __new__.
        self.stream = stream

    def close(self) -> None:
        """End the epoch."""
        self.stream.close()


def give_length(batches: Any, order: Sized) -> Iterator[Tree]:
    """An iterator over these batches that has the length of the order.

    batches: an EpochIterator, which is returned itself, or a stream of the native core.
    """
    measured: Any = batches if isinstance(batches, EpochIterator) else StreamedBatches(batches)
    measured.order = order
    return measured
