"""Ordered results of work that background threads do ahead of their use.

A thread claims the next item under a lock, does the work, and puts the result into a queue. It
waits for nothing but room: together the threads may be num_threads * ahead results ahead, and
results that the consumer keeps do not count, so a consumer that keeps everything never deadlocks.

A consumer that finds nothing ready does an item itself instead of waiting, see `ConsumerShare`:
being woken costs 40 to 90 us where every core is already busy gathering, as much as a batch does.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

from fastloop.fastloader.worker_thread import WorkerThread

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True)
class ItemFailure:
    """An error in the place of an item or a result."""

    error: BaseException


@dataclass
class WorkQueue:
    """The items of work, numbered, and drawn from an iterator only as they are claimed."""

    _items: Iterator[Any]
    count: int = 0
    """How many items have been claimed."""
    is_exhausted: bool = False
    """True where no more can be claimed."""
    _lock: Lock = field(default_factory=Lock)

    def claim(self) -> tuple[int, Any] | None:
        """Claim and return (number, item); None at the end.

        The item is an ItemFailure where it could not be drawn. Thread-safe.
        """
        with self._lock:
            if self.is_exhausted:
                return None
            try:
                item = next(self._items)
            except StopIteration:
                self.is_exhausted = True
                return None
            except BaseException as error:
                self.is_exhausted, item = True, ItemFailure(error)
            self.count += 1
            return self.count - 1, item

    def close(self) -> None:
        """Let nothing be claimed from now on.

        Without the lock, which this very thread may hold: the garbage collector may close an epoch
        anywhere.
        """
        self.is_exhausted = True


@dataclass(frozen=True)
class ConsumerShare:
    """The items that the consumer does itself instead of waiting."""

    max_ready: int = 0
    """With this many results in store it waits for the next one; 0: it does nothing itself."""
    first: int = 0
    """While it waits for one of the first `first` items, and all of these are claimed, it does not
    start a later one, which would delay the first batch of an epoch."""


@dataclass(frozen=True)
class Channels:
    """The queues between the threads and the consumer."""

    room: SimpleQueue[bool] = field(default_factory=SimpleQueue)
    """True: claim one more item; False: end."""
    results: SimpleQueue[tuple[int, Any]] = field(default_factory=SimpleQueue)
    """(number, result); THREAD_ENDED where a thread ends."""


THREAD_ENDED = -1, None
OPEN_EPOCHS: WeakSet[Generator[Any, None, None]] = WeakSet()


def map_in_threads(
    work: Callable[[W], R],
    items: Iterable[W],
    num_threads: int,
    ahead: int,
    share: ConsumerShare = ConsumerShare(),
    initialize: Callable[[], None] | None = None,
) -> Generator[R, None, None]:
    """work(item) for each item, in order, done by threads; closing it ends all of them.

    Errors of `work` and `items` are raised at the item's turn. The threads start at once, not with
    the first next(). Without threads the consumer does everything. initialize: called first in each
    thread.
    """
    queue, channels = WorkQueue(iter(items)), Channels()
    for _ in range(num_threads * ahead):
        channels.room.put(True)
    consumer = Consumer(work, queue, channels, share if num_threads else ConsumerShare(1))
    results = _receive(consumer, num_threads, partial(_run, work, queue, channels, initialize))
    OPEN_EPOCHS.add(results)
    next(results)
    return results


@atexit.register
def _close_all() -> None:
    """End all threads while they still can: a join later in the interpreter's shutdown may never
    return (https://github.com/python/cpython/issues/123940)."""
    for results in list(OPEN_EPOCHS):
        with suppress(ValueError):  # it is running in another thread
            results.close()


def _receive(
    consumer: Consumer, num_threads: int, run: Callable[[], None]
) -> Generator[Any, None, None]:
    threads: list[WorkerThread] = []
    pid = os.getpid()
    try:
        for _ in range(num_threads):
            threads.append(WorkerThread(run))
        yield None  # started, so that close() ends the threads from now on
        for number in count():
            if (result := consumer.get(number)) is None:
                return
            if isinstance(result, ItemFailure):
                raise result.error
            yield result
            del result  # or it would be held while waiting for the next
    finally:
        if os.getpid() == pid:  # a fork has none of these threads, and may have a held lock
            consumer.queue.close()
            for _ in threads:
                consumer.channels.room.put(False)
            # Not where the collector closes this in one of the threads, which may hold a lock that
            # the others wait for: they end once it continues.
            if not any(thread.is_current for thread in threads):
                for thread in threads:
                    thread.join()


@dataclass(frozen=True)
class Consumer:
    """The receiver of the results, in the order of the items."""

    work: Callable[[Any], Any]
    queue: WorkQueue
    channels: Channels
    share: ConsumerShare
    ready: dict[int, Any] = field(default_factory=dict)
    """Results that are not yet due, by number."""
    from_threads: set[int] = field(default_factory=set)
    """Numbers of those that a thread has made."""

    def get(self, number: int) -> Any:
        """Return the result of that number; None where there are not as many items."""
        while number not in self.ready:
            if self.queue.is_exhausted and number >= self.queue.count:
                return None
            self._get_any(number)
        if number in self.from_threads:
            self.from_threads.remove(number)
            self.channels.room.put(True)
        return self.ready.pop(number)

    def _get_any(self, number: int) -> None:
        """Store a thread's result if there is one, else do an item here, else wait for a thread."""
        if not self.channels.results.empty():  # no other thread takes from it
            return self._store(*self.channels.results.get())
        is_claimed = number < self.queue.count
        must_wait = number < self.share.first <= self.queue.count
        may_work = len(self.ready) < self.share.max_ready and not must_wait
        claimed = self.queue.claim() if may_work else None
        if claimed is not None:
            self.ready[claimed[0]] = _do(self.work, claimed[1], Exception)
        elif is_claimed or not self.share.max_ready:
            self._store(*self.channels.results.get())
        return None

    def _store(self, number: int, result: Any) -> None:
        if number >= 0:
            self.ready[number] = result
            self.from_threads.add(number)


def _run(
    work: Callable[[Any], Any],
    queue: WorkQueue,
    channels: Channels,
    initialize: Callable[[], None] | None,
) -> None:
    if initialize is not None:
        initialize()
    while channels.room.get() and (claimed := queue.claim()) is not None:
        channels.results.put((claimed[0], _do(work, claimed[1], BaseException)))
    channels.results.put(THREAD_ENDED)


def _do(work: Callable[[Any], Any], item: Any, caught: type[BaseException]) -> Any:
    try:
        return item if isinstance(item, ItemFailure) else work(item)
    except caught as error:
        return ItemFailure(error)
