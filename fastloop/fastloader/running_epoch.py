"""Iterators that deliver an epoch's batches to the loop.

The loop may consist of several threads, and may ask for the first batch long after iter().
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
"""Maximum time that the end of an epoch waits for a thread, or a process, to finish its batch. A
thread that has not finished by then is left behind: it ends with its batch, which is not delivered.
A process is terminated."""
INTERRUPTED_S = 0.5
"""Takes the place of LEAVE_S after a KeyboardInterrupt, or the end of a process. It is short,
because a Dataset may block forever."""


class EpochIterator:
    """An iterator over the batches of an epoch, with the length that DataLoader's iterator has."""

    order: Sized
    """The order of the epoch, which the loader assigns."""

    def __len__(self) -> int:
        """Return the number of batches of the whole epoch; TypeError if it is not known."""
        return len(self.order)


class SharedBatches(EpochIterator):
    """The batches of an epoch, which several threads may ask for at the same time.

    In place of a FailedBatch, next() raises its error.
    """

    def __init__(self, batches: Generator[Tree | FailedBatch, None, None]) -> None:
        # The lock is needed because a generator raises ValueError if it is asked while it runs. It
        # is reentrant, as the garbage collector may close the epoch in the thread that holds it.
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
        del self, batch  # or the error's traceback would keep the epoch, and its threads, alive
        try:
            raise error
        finally:
            del error

    def close(self) -> None:
        """End the epoch."""
        self._batches.close()


@dataclass(frozen=True)
class Running:
    """An epoch with threads that have started."""

    results: Generator[Any, None, None]
    receive: Callable[[Any], Sequence[Tree]]
    """result -> the group's batches; called in the loop's thread."""
    end: Callable[[], None]
    """A function that is called when the threads have ended; it ends processes."""

    def deliver(
        self,
        state: dict[str, Any],
        finish: Callable[[], None],
        draw_for: Callable[[int], None] | None = None,
    ) -> Iterator[Tree]:
        """Iterate over the batches, and count each in the state; close() ends the threads.

        A failed batch is counted only when the next batch is asked for. If the program ends with
        the error, it therefore resumes with the failed batch.

        finish: called after the last batch. draw_for: called before each batch is delivered, with
        its number, from 1 on. In a fork of this process, next() raises RuntimeError: the fork has
        none of the threads, and a thread may have held a lock at the time of the fork.
        """
        return SharedBatches(self._deliver(state, finish, draw_for, os.getpid()))

    def _deliver(
        self,
        state: dict[str, Any],
        finish: Callable[[], None],
        draw_for: Callable[[int], None] | None,
        pid: int,
    ) -> Generator[Tree | FailedBatch, None, None]:
        """The batches, see `deliver`; pid: of the process in which this may run."""
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
                    # This is checked after each batch, because the fork may have been made while
                    # the loop had the batch.
                    _refuse_fork(pid)
                    state["delivered"] += has_failed
                # Otherwise this frame would hold the last batch while the next ones are made.
                del batches, batch
            finish()
        finally:
            self.results.close()
            self.end()


def _refuse_fork(pid: int) -> None:
    if os.getpid() != pid:
        problem = f"process {pid} has begun this epoch of FastLoader, and {os.getpid()} is its fork"
        raise RuntimeError(f"{problem}: iterate over the loader again in the fork")


class LaterBatches(EpochIterator, chain):
    """The batches of an epoch that begins when the first of them is asked for.

    itertools.chain hands them on without a call of Python, which would take a tenth of the time of
    a small batch.
    """

    beginning: _Beginning

    def close(self) -> None:
        """End the epoch."""
        self.beginning.is_closed = True
        for batches in self.beginning.begun:
            batches.close()


class _Beginning:
    """An iterator that gives each thread one item, the iterator over the epoch's batches. The first
    item begins the epoch."""

    def __init__(self, begin: Callable[[], Any]) -> None:
        self._begin = begin
        self._lock = RLock()
        self._threads: set[int] = set()
        self.begun: list[Any] = []
        self.is_closed = False

    def __iter__(self) -> _Beginning:
        return self

    def __next__(self) -> Iterator[Tree]:
        with self._lock:
            # chain asks again when the batches it was given have ended: that is the epoch's end for
            # this thread. Other threads get the same iterator, and so the rest of the epoch.
            if self.is_closed or get_ident() in self._threads:
                raise StopIteration
            self._threads.add(get_ident())
            if not self.begun:
                self.begun.append(self._begin())
            return self.begun[0]


def begin_later(begin: Callable[[], Any]) -> LaterBatches:
    """The batches of an epoch that begins when the first of them is asked for."""
    beginning = _Beginning(begin)
    batches: Any = LaterBatches.from_iterable(beginning)
    batches.beginning = beginning
    return batches


class StreamedBatches(EpochIterator, chain):
    """The batches of the native core's stream, which has no length of its own.

    They are handed on without a call of Python, in 2 ns.
    """

    stream: Any

    def close(self) -> None:
        """End the epoch."""
        self.stream.close()


def give_length(batches: Any, order: Sized) -> Iterator[Tree]:
    """The batches of an epoch, or an iterator that hands them on, with the length of this order."""
    measured: Any = batches if isinstance(batches, EpochIterator) else _hand_on(batches)
    measured.order = order
    return measured


def _hand_on(stream: Any) -> StreamedBatches:
    batches: Any = StreamedBatches.from_iterable((stream,))
    batches.stream = stream
    return batches
