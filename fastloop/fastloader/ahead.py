"""Blocks that background threads make ahead of their use, in order.

Thread t of T makes blocks t, t + T, …, and hands them over by a queue of its own: the order needs
no lock, and a thread waits for nothing but work. It may be `ahead` blocks ahead; what the consumer
keeps does not count, so that one who keeps everything is never waited for. What is to be made is
drawn by the consumer, one for each that it takes: an order may be drawn as the epoch goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import torch

W = TypeVar("W")
B = TypeVar("B")


@dataclass(frozen=True)
class Lane:
    """What goes between one thread and the consumer."""

    work: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    """What is to be made; None: no more at all."""
    made: SimpleQueue[Any] = field(default_factory=SimpleQueue)


@dataclass(frozen=True)
class Failed:
    """In the place of a block."""

    error: BaseException


def in_threads(
    make: Callable[[W], B], work: Iterable[W], num_threads: int, ahead: int
) -> Generator[B, None, None]:
    """make(one) for one in work, made by threads; no thread is left when it is closed.

    Whatever `make` raises is raised here, in its turn. The threads start at once, not with the
    first next().
    """
    coming = iter(work)
    first = list(islice(coming, num_threads * ahead))
    lanes = [Lane() for _ in first[:num_threads]]
    for lane, one in zip(cycle(lanes), first, strict=False):
        lane.work.put(one)
    threads = [
        Thread(target=_run, args=(make, lane), daemon=True, name="FastLoader") for lane in lanes
    ]
    for thread in threads:
        thread.start()
    blocks = _received(lanes, threads, len(first), coming)
    next(blocks)
    return blocks


def _received(
    lanes: Sequence[Lane], threads: Sequence[Thread], given: int, coming: Iterator[Any]
) -> Generator[Any, None, None]:
    try:
        yield None  # begun, so that close() ends the threads from now on
        for taken, lane in enumerate(cycle(lanes)):
            if taken == given:
                return
            block = lane.made.get()
            if isinstance(block, Failed):
                raise block.error
            for one in islice(coming, 1):
                lane.work.put(one)
                given += 1
            yield block
            del block  # or it would be held while the next is waited for
    finally:
        for lane in lanes:
            _empty(lane.work)
            lane.work.put(None)
        for thread in threads:
            thread.join()


def _empty(work: SimpleQueue[Any]) -> None:
    with suppress(Empty):
        while True:
            work.get_nowait()


def _run(make: Callable[[Any], Any], lane: Lane) -> None:
    # OpenMP's threads wait for each other at barriers, where a busy neighbour holds up all of them.
    torch.set_num_threads(1)
    while (one := lane.work.get()) is not None:
        try:
            lane.made.put(make(one))
        except BaseException as error:
            lane.made.put(Failed(error))
            return
