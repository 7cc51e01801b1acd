"""`device_prefetch_by=stream`: a CUDA stream copies the next batches while a step runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial

import torch

from fastloop.core.types import Epochs, Tree
from fastloop.trial.prefetch.cuda_stream import DeliveryStream, PendingBatch, open_prefetch


def prefetch_by_stream(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
) -> AbstractContextManager[Epochs]:
    """Epochs of batches on the device; `ahead` batches are being copied while a step runs.

    This is the technique of apex's data_prefetcher (seed 002, first technique). The loop's thread
    loads every batch, so that only work on the device is hidden behind the step. A copy from memory
    that is not page-locked blocks the loop until it is done.
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
    pending: deque[PendingBatch] = deque()
    for batch in stream.deliver_each(stream.start_epoch(epochs, epoch), deliver):
        pending.append(batch)
        if len(pending) > ahead:
            yield stream.receive(*pending.popleft())
    while pending:
        yield stream.receive(*pending.popleft())
