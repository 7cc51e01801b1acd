"""Prefetch batches on a separate CUDA stream: `device_prefetch_by=stream`.

To deliver a batch is to copy the batch to the device, and to complete it there. On a stream of its
own, a delivery runs concurrently with the loop's work on the GPU. Prefetching by a thread or by a
process uses a `DeliveryStream`, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from fastloop.core.move_tensors import split_tensors
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.types import Epochs, Tree
from fastloop.fastloader.device_copy import CopyStream, receive_copies

END: Any = object()
"""Marks the end of an iterator."""

PendingBatch = tuple[Tree, Any]
"""A batch with a copy that may still run, and the CUDA event after this copy; None without CUDA."""


class DeliveryStream:
    """The stream on which batches are delivered: a separate one on CUDA, else the loop's own."""

    def __init__(self, device: torch.device) -> None:
        self._copies = CopyStream(device)

    def start_epoch(self, epochs: Epochs, epoch: int) -> Iterator[Tree]:
        """An iterator over the epoch's batches.

        This stream waits for the work that is queued on the caller's stream.
        """
        # iter() runs on this stream as well, because a loader may put tensors on the device for a
        # whole epoch, such as indices. If these were allocated on the caller's stream, their memory
        # could be reused before a pending gather on this stream has read it.
        self._copies.follow_caller()
        with self._copies.as_current():
            return iter(epochs(epoch))

    def deliver_each(
        self, batches: Iterator[Tree], deliver: Callable[[Tree], Tree]
    ) -> Iterator[PendingBatch]:
        """Yield deliver(batch) for each batch, with the event after its copy.

        The loader's own work on the device runs on this stream, too.
        """
        while True:
            with self._copies.as_current():
                batch = next(batches, END)
                if batch is END:
                    return
                placed = deliver(batch)
                # While the consumer works on `placed`, the host batch must not occupy memory.
                del batch
                copied = self._copies.record()
            yield placed, copied

    def receive(self, placed: Tree, copied: Any) -> Tree:
        """Make the caller's stream wait for the copy, and return the batch.

        The batch's memory is not reused before the caller's stream has finished with it.
        """
        if copied is not None:
            tensors, _ = split_tensors(placed, self._copies.device)
            on_device = [tensor for tensor in tensors if tensor.is_cuda]
            receive_copies(copied, on_device, self._copies.device)
        return placed


@contextmanager
def open_prefetch(
    open_: Callable[[], AbstractContextManager[Epochs]],
    prefetch_epoch: Callable[[Epochs, int, DeliveryStream], Generator[Tree, None, None]],
    device: torch.device,
) -> Iterator[Epochs]:
    """Open a loader, and yield its epochs as `prefetch_epoch` delivers them on a stream.

    open_: opens the loader. prefetch_epoch: yields the batches of an epoch, by its number. Epochs
    that are still open are closed when the context ends.
    """
    stream = DeliveryStream(device)
    with (
        open_() as epochs,
        close_on_exit(lambda epoch: prefetch_epoch(epochs, epoch, stream)) as prefetched,
    ):
        yield prefetched


def prefetch_by_stream(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
) -> AbstractContextManager[Epochs]:
    """A context with epochs of batches on the device; `ahead` batches are copied during a step.

    open_: opens the loader. deliver: delivers a batch. The technique is that of apex's
    data_prefetcher. The loop's thread loads every batch, so only work on the device is hidden
    behind the step. A copy from memory that is not page-locked blocks the loop until the copy is
    done.
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
    """Yield the batches of an epoch, with up to `ahead` copies pending."""
    pending: deque[PendingBatch] = deque()
    for batch in stream.deliver_each(stream.start_epoch(epochs, epoch), deliver):
        pending.append(batch)
        if len(pending) > ahead:
            yield stream.receive(*pending.popleft())
    while pending:
        yield stream.receive(*pending.popleft())
