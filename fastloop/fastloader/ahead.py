"""Blocks that background threads make ahead of their use, in order.

Thread t of T makes blocks t, t + T, …, and hands them over by a queue of its own: the order needs
no lock, and a thread waits for nothing but room. It may be `ahead` blocks ahead; what the consumer
keeps does not count, so that one who keeps everything is never waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import torch

W = TypeVar("W")
B = TypeVar("B")


@dataclass(frozen=True)
class Lane:
    """What goes between one thread and the consumer."""

    room: SimpleQueue[bool] = field(default_factory=SimpleQueue)
    """True: make one more; False: no more at all."""
    made: SimpleQueue[Any] = field(default_factory=SimpleQueue)


@dataclass(frozen=True)
class Failed:
    """In the place of a block."""

    error: BaseException


def in_threads(
    make: Callable[[W], B], work: Sequence[W], num_threads: int, ahead: int
) -> Generator[B, None, None]:
    """make(one) for one in work, made by threads; no thread is left when it is closed.

    Whatever `make` raises is raised here, in its turn. The threads start at once, not with the
    first next().
    """
    lanes = [Lane() for _ in range(min(num_threads, len(work)))]
    threads = [
        Thread(
            target=_run, args=(make, work[at :: len(lanes)], lane), daemon=True, name="FastLoader"
        )
        for at, lane in enumerate(lanes)
    ]
    for lane in lanes:
        for _ in range(ahead):
            lane.room.put(True)
    for thread in threads:
        thread.start()
    blocks = _received(lanes, threads, len(work))
    next(blocks)
    return blocks


def _received(
    lanes: Sequence[Lane], threads: Sequence[Thread], count: int
) -> Generator[Any, None, None]:
    try:
        yield None  # begun, so that close() ends the threads from now on
        for number in range(count):
            lane = lanes[number % len(lanes)]
            block = lane.made.get()
            if isinstance(block, Failed):
                raise block.error
            lane.room.put(True)
            yield block
            del block  # or it would be held while the next is waited for
    finally:
        for lane in lanes:
            lane.room.put(False)
        for thread in threads:
            thread.join()


def _run(make: Callable[[Any], Any], work: Sequence[Any], lane: Lane) -> None:
    # OpenMP's threads wait for each other at barriers, where a busy neighbour holds up all of them.
    torch.set_num_threads(1)
    for one in work:
        if not lane.room.get():
            return
        try:
            lane.made.put(make(one))
        except BaseException as error:
            lane.made.put(Failed(error))
            return
