"""`device_prefetch_by=thread`: a background thread loads the next batches and moves them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from functools import partial
from itertools import repeat
from typing import Any

import torch

from fastloop.core.types import Epochs, Tree
from fastloop.fastloader.thread_map import map_ahead
from fastloop.trial.prefetch.stream import END, DeliveryStream, open_prefetch


def prefetch_by_thread(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
) -> AbstractContextManager[Epochs]:
    """Epochs of batches on the device; `ahead` batches are loaded or moved while a step runs.

    Each epoch has a thread, which starts with its first batch; on CUDA it copies on a separate
    stream. Its errors are raised in the loop, with their traceback.
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
    # iter() is called here, not in the thread: when a thread ends, the kernel kills the workers it
    # has started, persistent ones included, see processes/parent_death.py.
    batches = stream.deliver_each(stream.start_epoch(epochs, epoch), deliver)
    # There is one thread, so that no two calls of next() run at once, and batches stay in order.
    take: Callable[[Any], Any] = partial(next, batches)
    with closing(map_ahead(take, repeat(END), 1, ahead)) as delivered:
        for pending in delivered:
            if pending is END:
                return
            yield stream.receive(*pending)
