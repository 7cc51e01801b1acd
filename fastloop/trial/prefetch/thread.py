"""Load and move the next batches in a background thread: `device_prefetch_by=thread`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial
from queue import SimpleQueue

import torch

from fastloop.core.types import Epochs, Tree
from fastloop.trial.prefetch.stream import END, DeliveryStream, PendingBatch, open_prefetch


def prefetch_by_thread(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
) -> AbstractContextManager[Epochs]:
    """Epochs of batches on the device; `ahead` batches are loaded or moved while a step runs.

    Each epoch has its own thread, which starts when the first batch is asked for. On CUDA it copies
    on a separate stream. Errors of the thread are raised in the loop, with their traceback.
    """
    prefetch_epoch = partial(_prefetch_epoch, deliver=deliver, ahead=ahead)
    return open_prefetch(open_, prefetch_epoch, device)


def _prefetch_epoch(
    epochs: Epochs,
    epoch: int,
    stream: DeliveryStream,
    *,
    deliver: Callable[[Tree], Tree],
    ahead: int,
) -> Generator[Tree, None, None]:
    """Yield the batches of an epoch, which a thread loads and moves up to `ahead` in advance."""
    # `room` holds a token for each batch that the thread may load, `ready` the loaded batches.
    room = SimpleQueue()
    ready = SimpleQueue()
    stopped = threading.Event()
    for _ in range(ahead):
        room.put(None)
    # iter() is called here, not in the thread: when a thread ends, the kernel kills the workers it
    # has started, persistent ones included, see processes/parent_death.py.
    thread = threading.Thread(
        target=_fill,
        # This frame must not keep the iterator alive, so no name in it refers to it.
        args=(
            stream.deliver_each(stream.start_epoch(epochs, epoch), deliver),
            room,
            stopped,
            ready,
        ),
        daemon=True,
    )
    thread.start()
    try:
        while True:
            pending, error = ready.get()
            if error is not None:
                # The traceback refers to this frame and the frame to the error: without the del,
                # the cycle would keep the batch of this frame alive.
                try:
                    raise error
                finally:
                    del error
            if pending is END:
                return
            room.put(None)
            yield stream.receive(*pending)
    finally:
        # The token wakes the thread, which then sees `stopped`.
        stopped.set()
        room.put(None)
        thread.join()


def _fill(
    batches: Iterator[PendingBatch],
    room: SimpleQueue,
    stopped: threading.Event,
    ready: SimpleQueue,
) -> None:
    """Put (batch, None) for each batch into `ready`, then (END, None); (None, error) on failure."""
    pending = None
    try:
        while pending is not END:
            room.get()
            if stopped.is_set():
                return
            pending = next(batches, END)
            ready.put((pending, None))
    except BaseException as error:
        ready.put((None, error))
