"""Map work over items: threads do it ahead of its use, while the loop's own thread draws the items.

A thread works on an item, or on a part of one: several threads then make the same item, and the
thread that makes its last part completes it. No thread waits for another.

Samplers and batch samplers are read by the loop alone, as DataLoader reads them: they need not be
thread-safe, and draw from torch's global generator at the same places of a program.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any, TypeVar
from weakref import WeakSet

from fastloop.fastloader.bytes_ahead import BytesAhead
from fastloop.fastloader.running_epoch import INTERRUPTED_S, LEAVE_S

W = TypeVar("W")
R = TypeVar("R")
UNFINISHED: Any = object()
"""The result of every part of an item except the one that is finished last."""
Part = Callable[[], Any]
"""Makes a part of an item. Returns the item's result, or UNFINISHED."""
OPEN_MAPS: WeakSet[Generator[Any, None, None]] = WeakSet()
"""The maps with threads that may still run."""


@dataclass(frozen=True)
class TaskFailure:
    """An error in place of a result, or of an item."""

    error: BaseException


@dataclass(frozen=True)
class ItemsFailure(TaskFailure):
    """An error in place of an item."""


def map_ahead(
    work: Callable[[W], R],
    items: Iterable[W],
    num_threads: int,
    ahead: int,
    *,
    in_order: bool = True,
    limit: BytesAhead | None = None,
) -> Generator[R, None, None]:
    """work(item) for each item, in order; closing the generator ends the threads.

    in_order: False: results come as they get ready, and an error of `items` comes last.
    limit: limits the bytes of the results that threads make ahead; None: only their number counts.

    Errors of `work` and `items` are raised at the item's turn. The threads start at once, and have
    at most num_threads * ahead items; without threads everything is done when it is asked for.
    """
    if not num_threads:
        return _map_here(work, items)

    def divide(item: W) -> list[Part]:
        return [partial(work, item)]

    return map_parts_ahead(divide, items, num_threads, ahead, in_order=in_order, limit=limit)


def map_parts_ahead(
    divide: Callable[[W], Sequence[Part]],
    items: Iterable[W],
    num_threads: int,
    ahead: int,
    *,
    in_order: bool,
    limit: BytesAhead | None = None,
) -> Generator[Any, None, None]:
    """The result of each item; threads make the parts into which `divide` splits it.

    Exactly one part of an item returns its result. Otherwise this is map_ahead; there is at least
    one thread. limit: only for items of one part.
    """
    most = num_threads * ahead
    results = _map_by_threads(divide, items, num_threads, most, limit, in_order=in_order)
    OPEN_MAPS.add(results)
    # This runs the generator up to its first `yield`, so that the threads start now.
    next(results)
    return results


@atexit.register
def _close_all() -> None:
    """End all threads while they still can: a join later in the interpreter's shutdown may never
    return (https://github.com/python/cpython/issues/123940)."""
    for results in list(OPEN_MAPS):
        # The generator may be running in another thread, which ends it.
        with suppress(ValueError):
            results.close()


def _map_here(work: Callable[[Any], Any], items: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield work(item) for each item, made when it is asked for."""
    for item in items:
        try:
            result = work(item)
        except StopIteration as error:
            # A StopIteration would end the loop as if there were no more items.
            raise RuntimeError("the making of a batch raised StopIteration") from error
        yield result
        # Otherwise this frame would hold the item and its result while the next one is made.
        del result, item


def _map_by_threads(
    divide: Callable[[Any], Sequence[Part]],
    items: Iterable[Any],
    num_threads: int,
    most: int,
    limit: BytesAhead | None,
    *,
    in_order: bool,
) -> Generator[Any, None, None]:
    """Start the threads, then yield each item's result. They begin at most `most` items ahead."""
    tasks: SimpleQueue[tuple[int, Part] | None] = SimpleQueue()
    results: SimpleQueue[tuple[int, Any, int]] = SimpleQueue()
    arguments = _make_parts, tasks, results, limit
    # Each thread has a copy of the loop's context variables, such as those of np.errstate.
    threads = [
        Thread(target=copy_context().run, args=arguments, daemon=True) for _ in range(num_threads)
    ]
    pid = os.getpid()
    try:
        for thread in threads:
            thread.start()
        # Results come in any order, and are delivered by number unless any order will do.
        drawn = enumerate(_catch(map(divide, items)))
        ready = {}
        count = _put(tasks, islice(drawn, most))
        received = 0
        # The generator has started, so close() ends the threads from now on.
        yield None
        while received < count:
            while received not in ready:
                number, result, nbytes = results.get()
                # An error of `items` has the last number: the results of items drawn before it come
                # first.
                is_last = isinstance(result, ItemsFailure)
                ready[number if in_order or is_last else received] = result, nbytes
            result, nbytes = ready.pop(received)
            received += 1
            if limit is not None:
                limit.receive(nbytes)
            if isinstance(result, TaskFailure):
                raise result.error
            # The threads get another item before the result is delivered, so that they have work
            # while the loop uses it.
            count += _put(tasks, islice(drawn, 1))
            yield result
            # Otherwise this frame would hold the result while it waits for the next.
            del result
    finally:
        # A fork has none of these threads.
        if os.getpid() == pid:
            _end(threads, tasks, limit)


def _catch(divided: Iterable[Sequence[Part]]) -> Iterator[Sequence[Part]]:
    """The parts of each item. The error of an item that can't be drawn takes the place of its
    part."""
    try:
        yield from divided
    except Exception as error:
        failure = ItemsFailure(error)
        yield [lambda: failure]


def _put(tasks: SimpleQueue, drawn: Iterator[tuple[int, Sequence[Part]]]) -> int:
    """Hand the parts of these items over to the threads, and return the number of items."""
    count = 0
    for number, parts in drawn:
        for part in parts:
            tasks.put((number, part))
        count += 1
    return count


def _end(threads: list[Thread], tasks: SimpleQueue, limit: BytesAhead | None) -> None:
    """Take back the parts that no thread has begun, and end the threads."""
    if limit is not None:
        limit.end()
    with suppress(Empty):
        while True:
            tasks.get_nowait()
    for _ in threads:
        tasks.put(None)
    if current_thread() in threads:
        # The garbage collector may close the epoch in one of its own threads, which can't join
        # itself.
        return
    patience = INTERRUPTED_S if isinstance(sys.exception(), KeyboardInterrupt) else LEAVE_S
    for thread in threads:
        if thread.ident is None:
            # The thread could not be started.
            continue
        thread.join(patience)
        if thread.is_alive():
            # One thread has used up the patience: the others are not waited for.
            patience = 0


def _make_parts(tasks: SimpleQueue, results: SimpleQueue, limit: BytesAhead | None) -> None:
    """The work of a thread: make parts until a None comes, and put the results of whole items."""
    while (task := tasks.get()) is not None:
        number, part = task
        if limit is not None and not limit.begin(number):
            return
        try:
            result = part()
        except BaseException as error:
            result = TaskFailure(error)
        if result is not UNFINISHED:
            results.put((number, result, 0 if limit is None else limit.finish(result)))
        # Otherwise this frame would hold the last item and its batch until the next task comes.
        del task, part, result
