"""Iterators that deliver an epoch's batches to the loop.

The loop may run in several threads, and may ask for the first batch long after iter().
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import chain
from threading import RLock, get_ident
from typing import Any

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import FailedBatch

LEAVE_S = 5.0
"""Maximum seconds that the end of an epoch waits for a thread, or a process, to finish its batch.
After that, a process is terminated. A thread is left behind: it ends when its batch is finished,
and the batch is not delivered."""
INTERRUPTED_S = 0.5
"""Seconds in place of LEAVE_S after a KeyboardInterrupt, or if a process of the epoch has died. The
time is short because a Dataset may block forever."""


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
        # lock is needed. The lock is reentrant, because the garbage collector may close the epoch
        # in the thread that holds the lock.
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
        """End the epoch."""
        self._batches.close()


@dataclass(frozen=True)
class Running:
    """An epoch that is being loaded by threads, which make batches in groups."""

    results: Generator[Any, None, None]
    """Yields a result for each group; its close() ends the threads."""
    receive: Callable[[Any], Sequence[Tree]]
    """A function that returns the batches of a result's group; called in the loop's thread."""
    end: Callable[[], None]
    """A function that ends the epoch's processes; called when the threads have ended."""

    def deliver(
        self,
        state: dict[str, Any],
        finish: Callable[[], None],
        draw_for: Callable[[int], None] | None = None,
    ) -> Iterator[Tree]:
        """Return an iterator over the batches, which counts them; its close() ends the threads.

        state: state of the loader, in which `delivered` is increased with each batch. A failed
        batch is counted only when the next batch is asked for. So if the program ends with the
        error, it resumes with the failed batch.

        finish: called after the last batch. draw_for: called before each batch is delivered, with
        the number of the batch, from 1 on; None: not needed.

        In a fork of this process, next() raises RuntimeError: a fork has none of the threads, and
        may have copied a lock that a thread held.
        """
        return SharedBatches(self._deliver(state, finish, draw_for, os.getpid()))

    def _deliver(
        self,
        state: dict[str, Any],
        finish: Callable[[], None],
        draw_for: Callable[[int], None] | None,
        pid: int,
    ) -> Generator[Tree | FailedBatch, None, None]:
        """Yield the batches, see `deliver`.

        pid: id of the process that began the epoch. No other process may continue it.
        """
        first = state["delivered"]
        try:
            _refuse_fork(pid)
            for result in self.results:
                batch = None
                batches = self.receive(result)
                del result
                if not batches:
                    # A group without batches is an iterable's end.
                    break
                for batch in batches:
                    has_failed = isinstance(batch, FailedBatch)
                    state["delivered"] += not has_failed
                    if draw_for is not None:
                        draw_for(state["delivered"] + has_failed - first)
                    yield batch
                    # The loop may have forked while it had the batch, so each batch is followed by
                    # this check.
                    _refuse_fork(pid)
                    state["delivered"] += has_failed
                # Otherwise the last batch would stay in memory while the next ones are made.
                del batches, batch
            finish()
        finally:
            self.results.close()
            self.end()


def _refuse_fork(pid: int) -> None:
    """Raise RuntimeError in any process but the one with this id."""
    if os.getpid() != pid:
        problem = f"process {pid} has begun this epoch of FastLoader, and {os.getpid()} is its fork"
        raise RuntimeError(f"{problem}: iterate over the loader again in the fork")


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

    stream: Any
    """The stream of the native core."""

    def close(self) -> None:
        """End the epoch."""
        self.stream.close()


def give_length(batches: Any, order: Sized) -> Iterator[Tree]:
    """An iterator over these batches that has the length of the order.

    batches: an EpochIterator, which is returned itself, or a stream of the native core.
    """
    measured: Any = batches if isinstance(batches, EpochIterator) else _hand_on(batches)
    measured.order = order
    return measured


def _hand_on(stream: Any) -> StreamedBatches:
    """An iterator that hands on the batches of this stream of the native core."""
    batches: Any = StreamedBatches.from_iterable((stream,))
    batches.stream = stream
    return batches
