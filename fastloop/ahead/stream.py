"""`device_prefetch_by=stream`: the next batches are copied beside the step, on a CUDA stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from fastloop.ahead.lane import Lane, Sent
from fastloop.generators import closed_at_the_end
from fastloop.types import Epochs, Tree


@contextmanager
def by_stream(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
) -> Iterator[Epochs]:
    """Epochs of batches on the device, `ahead` of which are on their way while a step runs.

    Seed 002's first way, apex's data_prefetcher. One thread does it all: loading still takes the
    loop's time, and only what the device does beside the step is hidden. A copy from memory that is
    not page-locked holds the loop up until it is done.
    """
    lane = Lane(device)
    with (
        open_() as epochs,
        closed_at_the_end(lambda epoch: _moved(epochs, epoch, deliver, ahead, lane)) as moved,
    ):
        yield moved


def _moved(
    epochs: Epochs, epoch: int, deliver: Callable[[Tree], Tree], ahead: int, lane: Lane
) -> Generator[Tree, None, None]:
    waiting: deque[Sent] = deque()
    for one in lane.sent(lane.begun(epochs, epoch), deliver):
        waiting.append(one)
        if len(waiting) > ahead:
            yield lane.received(*waiting.popleft())
    while waiting:
        yield lane.received(*waiting.popleft())
