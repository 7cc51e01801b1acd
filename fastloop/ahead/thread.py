"""`device_prefetch_by=thread`: a thread in the background loads and moves the next batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from queue import SimpleQueue

import torch

from fastloop.ahead.lane import END, Lane, Sent
from fastloop.generators import closed_at_the_end
from fastloop.types import Epochs, Tree


@contextmanager
def by_thread(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
) -> Iterator[Epochs]:
    """Epochs of batches on the device, of which `ahead` are loaded or moved while a step runs.

    A thread an epoch, from its first batch on; on CUDA it copies on a stream of its own. What fails
    in it is raised in the loop, with the traceback from there.
    """
    lane = Lane(device)
    with (
        open_() as epochs,
        closed_at_the_end(lambda epoch: _loaded(epochs, epoch, deliver, ahead, lane)) as loaded,
    ):
        yield loaded


def _loaded(
    epochs: Epochs, epoch: int, deliver: Callable[[Tree], Tree], ahead: int, lane: Lane
) -> Generator[Tree, None, None]:
    room, ready, stopped = SimpleQueue(), SimpleQueue(), threading.Event()
    for _ in range(ahead):
        room.put(None)
    # iter() is called here and not in the thread: at a thread's end the kernel kills the workers
    # that it has started, kept ones too, see lifeline.py.
    work = lane.sent(lane.begun(epochs, epoch), deliver), room, stopped, ready
    thread = threading.Thread(target=_fill, args=work, daemon=True)
    del work
    thread.start()
    try:
        while True:
            sent, error = ready.get()
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback holds this frame
            if sent is END:
                return
            room.put(None)
            yield lane.received(*sent)
    finally:
        stopped.set()
        room.put(None)
        thread.join()


def _fill(
    batches: Iterator[Sent],
    room: SimpleQueue,
    stopped: threading.Event,
    ready: SimpleQueue,
) -> None:
    """Into the queue: (batch, None) for each, then (END, None), or (None, error)."""
    sent = None
    try:
        while sent is not END:
            room.get()
            if stopped.is_set():
                return
            sent = next(batches, END)
            ready.put((sent, None))
    except BaseException as error:
        ready.put((None, error))
