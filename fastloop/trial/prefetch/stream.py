"""`device_prefetch_by=stream`: a CUDA stream copies the next batches while a step runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from fastloop.core.epochs import close_on_exit
from fastloop.core.types import Epochs, Tree
from fastloop.trial.prefetch.cuda_stream import DeliveryStream, PendingBatch


@contextmanager
def prefetch_by_stream(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
) -> Iterator[Epochs]:
    """Epochs of batches on the device, of which `ahead` are being copied while a step runs.

    Seed 002's first technique, as in apex's data_prefetcher. The loop's thread loads every batch,
    so that only work on the device is hidden behind the step. A copy from memory that is not
    page-locked blocks the loop until it is done.
    """
    stream = DeliveryStream(device)
    with (
        open_() as epochs,
        close_on_exit(
            lambda epoch: _prefetch_epoch(epochs, epoch, deliver, ahead, stream)
        ) as prefetched,
    ):
        yield prefetched


def _prefetch_epoch(
    epochs: Epochs, epoch: int, deliver: Callable[[Tree], Tree], ahead: int, stream: DeliveryStream
) -> Generator[Tree, None, None]:
    pending: deque[PendingBatch] = deque()
    for batch in stream.deliver_each(stream.start_epoch(epochs, epoch), deliver):
        pending.append(batch)
        if len(pending) > ahead:
            yield stream.receive(*pending.popleft())
    while pending:
        yield stream.receive(*pending.popleft())
