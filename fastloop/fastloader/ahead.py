"""Blocks that background threads make ahead of their use, in order.

Whoever makes a block claims the next one first, under a lock, and threads put what they have made
into one queue. They wait for nothing but room: together they may be num_threads * ahead blocks
ahead, and what the consumer keeps does not count, so that one who keeps everything is never waited
for.

A consumer that finds nothing ready makes blocks itself instead of waiting, as `Own` says: to be
woken costs 40 to 90 us where every core gathers already, as much as a batch does.
"""

from __future__ import annotations

import atexit
import os
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from queue import SimpleQueue
from threading import Lock, get_ident
from typing import Any, TypeVar
from weakref import WeakSet

W = TypeVar("W")
B = TypeVar("B")


@dataclass(frozen=True)
class Failed:
    """In the place of a block."""

    error: BaseException


@dataclass
class Claims:
    """The work, which is drawn as it is claimed: an order may be drawn as the epoch goes on."""

    _work: Iterator[Any]
    count: int = 0
    """How much has been claimed."""
    is_over: bool = False
    """No more will be."""
    _lock: Lock = field(default_factory=Lock)

    def next(self) -> tuple[int, Any] | None:
        """The number of what is claimed, and that, or why it could not be drawn; None at the end.

        Any thread may call it.
        """
        with self._lock:
            if self.is_over:
                return None
            try:
                one = next(self._work)
            except StopIteration:
                self.is_over = True
                return None
            except BaseException as error:
                self.is_over, one = True, Failed(error)
            self.count += 1
            return self.count - 1, one

    def end(self) -> None:
        """Nothing is claimed from now on.

        Without the lock: the collector may close an epoch in a thread of its own that has it.
        """
        self.is_over = True


@dataclass(frozen=True)
class Own:
    """What the consumer makes itself before it waits."""

    ready: int = 0
    """So many blocks lie here when it waits for one instead of making a later one."""
    first: int = 0
    """Of so many, the first ones, it waits for the last before it makes a later one: the first
    batch of an epoch would come later by as much as that takes."""


@dataclass(frozen=True)
class Lanes:
    """What goes between the threads and the consumer."""

    room: SimpleQueue[bool] = field(default_factory=SimpleQueue)
    """True: claim one more; False: no more at all."""
    made: SimpleQueue[tuple[int, Any]] = field(default_factory=SimpleQueue)
    """The number of a block, and it; OVER where a thread ends."""


OVER = -1, None
RUNNING: WeakSet[Generator[Any, None, None]] = WeakSet()


def in_threads(
    make: Callable[[W], B],
    work: Iterable[W],
    num_threads: int,
    ahead: int,
    own: Own = Own(),
    begin: Callable[[], None] | None = None,
) -> Generator[B, None, None]:
    """make(one) for one in work, made by threads; no thread is left when it is closed.

    Whatever `make` or `work` raises is raised here, in its turn. The threads start at once, not
    with the first next(). Without threads the consumer makes everything. begin: what each thread
    does first.
    """
    claims, lanes = Claims(iter(work)), Lanes()
    for _ in range(num_threads * ahead):
        lanes.room.put(True)
    consumer = Consumer(make, claims, lanes, own if num_threads else Own(1))
    blocks = _received(consumer, num_threads, partial(_run, make, claims, lanes, begin))
    RUNNING.add(blocks)
    next(blocks)
    return blocks


@atexit.register
def _end_all() -> None:
    """Before the interpreter ends, when threads still can: one that is joined later may never come
    (https://github.com/python/cpython/issues/123940)."""
    for blocks in list(RUNNING):
        with suppress(ValueError):  # it runs in another thread
            blocks.close()


def _received(
    consumer: Consumer, num_threads: int, run: Callable[[], None]
) -> Generator[Any, None, None]:
    started: list[Running] = []
    here = os.getpid()
    try:
        for _ in range(num_threads):
            started.append(Running(run))
        yield None  # begun, so that close() ends the threads from now on
        for number in count():
            if (block := consumer.get(number)) is None:
                return
            if isinstance(block, Failed):
                raise block.error
            yield block
            del block  # or it would be held while the next is waited for
    finally:
        if os.getpid() == here:  # a fork has none of these threads, and perhaps a lock of theirs
            consumer.claims.end()
            for _ in started:
                consumer.lanes.room.put(False)
            # Closed by the collector in one of them, which may hold what the others wait for: they
            # end once it goes on.
            if not any(thread.is_here for thread in started):
                for thread in started:
                    thread.join()


class Running:
    """A daemon thread, started without waiting until it runs.

    threading.Thread.start() waits for that, and then for the interpreter's lock, which the new
    thread gives back for moments only while it gathers: 2.4 ms of an epoch of 24.
    """

    def __init__(self, run: Callable[[], None]) -> None:
        self._ended = allocate_lock()
        self._ended.acquire()
        self._ident = start_new_thread(self._run, (run,))

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        finally:
            self._ended.release()

    @property
    def is_here(self) -> bool:
        """True in itself."""
        return get_ident() == self._ident

    def join(self) -> None:
        """Return once it has ended; not in itself."""
        with self._ended:
            pass


@dataclass(frozen=True)
class Consumer:
    """Who takes the blocks in their order."""

    make: Callable[[Any], Any]
    claims: Claims
    lanes: Lanes
    own: Own
    ready: dict[int, Any] = field(default_factory=dict)
    """What came before its turn, by number."""
    by_others: set[int] = field(default_factory=set)
    """Those of them that a thread has made."""

    def get(self, number: int) -> Any:
        """The block of that number; None where there is none."""
        while number not in self.ready:
            if self.claims.is_over and number >= self.claims.count:
                return None
            self._get_any(number)
        if number in self.by_others:
            self.by_others.remove(number)
            self.lanes.room.put(True)
        return self.ready.pop(number)

    def _get_any(self, number: int) -> None:
        """What a thread has made by now, or the next of one's own, or what a thread will have."""
        if not self.lanes.made.empty():  # nobody else takes from it
            return self._keep(*self.lanes.made.get())
        is_claimed = number < self.claims.count
        is_later = number < self.own.first <= self.claims.count
        makes = len(self.ready) < self.own.ready and not is_later
        claimed = self.claims.next() if makes else None
        if claimed is not None:
            self.ready[claimed[0]] = _made(self.make, claimed[1], Exception)
        elif is_claimed or not self.own.ready:
            self._keep(*self.lanes.made.get())
        return None

    def _keep(self, number: int, block: Any) -> None:
        if number >= 0:
            self.ready[number] = block
            self.by_others.add(number)


def _run(
    make: Callable[[Any], Any], claims: Claims, lanes: Lanes, begin: Callable[[], None] | None
) -> None:
    if begin is not None:
        begin()
    while lanes.room.get() and (claimed := claims.next()) is not None:
        lanes.made.put((claimed[0], _made(make, claimed[1], BaseException)))
    lanes.made.put(OVER)


def _made(make: Callable[[Any], Any], one: Any, caught: type[BaseException]) -> Any:
    try:
        return one if isinstance(one, Failed) else make(one)
    except caught as error:
        return Failed(error)
