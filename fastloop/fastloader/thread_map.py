"""A map whose work threads do ahead of its use, while the loop's own thread draws the items.

Samplers and batch samplers are read by the loop alone, as DataLoader reads them: they need not be
thread-safe, and draw from torch's global generator at the same places of a program.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from fastloop.fastloader.worker_thread import WorkerThread

W = TypeVar("W")
R = TypeVar("R")
LEAVE_S = 5.0
"""The longest that the end of an epoch waits for a thread to finish its batch. One that has not is
left behind: it ends with its batch, of which nobody gets anything."""
INTERRUPTED_S = 0.5
"""The same after a KeyboardInterrupt: a Dataset may block for ever."""
OPEN_MAPS: WeakSet[Generator[Any, None, None]] = WeakSet()


@dataclass(frozen=True)
class TaskFailure:
    """An error in the place of an item or a result."""

    error: BaseException


@dataclass
class Feed:
    """The items, numbered as they are drawn, and the queues between the loop and its threads."""

    items: Iterator[Any]
    limit: int
    """Items that may be with the threads, undone or done."""
    tasks: SimpleQueue[tuple[int, Any] | None] = field(default_factory=SimpleQueue)
    """(number, item); None: end."""
    results: SimpleQueue[tuple[int, Any]] = field(default_factory=SimpleQueue)
    count: int = 0
    """Items that have been drawn."""
    received: int = 0
    is_exhausted: bool = False

    def draw(self) -> None:
        """Draw items for the threads up to the limit."""
        while not self.is_exhausted and self.count - self.received < self.limit:
            try:
                item = next(self.items)
            except StopIteration:
                self.is_exhausted = True
                return
            except Exception as error:
                self.is_exhausted, item = True, TaskFailure(error)
            self.tasks.put((self.count, item))
            self.count += 1

    def end(self, num_threads: int) -> None:
        """Take the tasks back that no thread has taken, and let the threads end."""
        with suppress(Empty):
            while True:
                self.tasks.get_nowait()
        for _ in range(num_threads):
            self.tasks.put(None)


def map_ahead(
    work: Callable[[W], R], items: Iterable[W], num_threads: int, ahead: int
) -> Generator[R, None, None]:
    """work(item) for each item, in order; closing it ends the threads.

    Errors of `work` and `items` are raised at the item's turn. The threads start at once, and have
    at most num_threads * ahead items; without threads everything is done when it is asked for.
    """
    if not num_threads:
        return _map_here(work, items)
    feed = Feed(iter(items), num_threads * ahead)
    results = _receive(feed, num_threads, partial(_run, work, feed.tasks, feed.results))
    OPEN_MAPS.add(results)
    next(results)
    return results


@atexit.register
def _close_all() -> None:
    """End all threads while they still can: a join later in the interpreter's shutdown may never
    return (https://github.com/python/cpython/issues/123940)."""
    for results in list(OPEN_MAPS):
        with suppress(ValueError):  # it is running in another thread
            results.close()


def _map_here(work: Callable[[W], R], items: Iterable[W]) -> Generator[R, None, None]:
    for item in items:
        yield work(item)


def _receive(feed: Feed, num_threads: int, run: Callable[[], None]) -> Generator[Any, None, None]:
    threads: list[WorkerThread] = []
    pid = os.getpid()
    try:
        for _ in range(num_threads):
            threads.append(WorkerThread(run))
        feed.draw()
        yield None  # started, so that close() ends the threads from now on
        yield from _in_order(feed)
    finally:
        if os.getpid() == pid:  # a fork has none of these threads
            feed.end(num_threads)
            _join(threads)


def _in_order(feed: Feed) -> Iterator[Any]:
    ready: dict[int, Any] = {}
    while feed.received < feed.count:
        while feed.received not in ready:
            number, result = feed.results.get()
            ready[number] = result
        result = ready.pop(feed.received)
        feed.received += 1
        if isinstance(result, TaskFailure):
            raise result.error
        feed.draw()
        yield result
        del result  # or it would be held while waiting for the next


def _join(threads: list[WorkerThread]) -> None:
    if any(thread.is_current for thread in threads):
        return  # the collector closes the epoch in one of them
    patience = INTERRUPTED_S if isinstance(sys.exception(), KeyboardInterrupt) else LEAVE_S
    for thread in threads:
        if not thread.join(patience):
            patience = 0  # together they are waited for no longer than one


def _run(work: Callable[[Any], Any], tasks: SimpleQueue, results: SimpleQueue) -> None:
    while (task := tasks.get()) is not None:
        number, item = task
        try:
            result = item if isinstance(item, TaskFailure) else work(item)
        except BaseException as error:
            result = TaskFailure(error)
        results.put((number, result))
        del task, item, result  # or they would be held until the next task
