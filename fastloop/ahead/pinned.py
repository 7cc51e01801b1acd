"""`pinned_buffers=N`: page-locked memory that is allocated once and used again and again.

`pin_memory` of a DataLoader takes page-locked memory for every batch, from torch's cache of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, cycle
from typing import Any

import torch

from fastloop.ahead.leaves import mapped
from fastloop.types import Tree

page_locked = partial(torch.empty, dtype=torch.uint8, pin_memory=True)


class Buffer:
    """Memory for the tensors of one batch; it grows when a larger batch comes, and never shrinks.

    empty: from a number of bytes to a tensor of uint8.
    """

    def __init__(self, empty: Callable[[int], torch.Tensor] = page_locked) -> None:
        self._empty = empty
        self._memory: list[torch.Tensor] = []
        self.copied: Any = None
        """The event behind the last copy out of it."""

    def filled(self, batch: Tree) -> Tree:
        """The batch in this memory: same tree, dtypes and shapes. What is no longer on the host
        stays where it is."""
        numbers = count()
        return mapped(lambda leaf: self._kept(next(numbers), leaf), batch)

    def _kept(self, number: int, leaf: torch.Tensor) -> torch.Tensor:
        if leaf.device.type != "cpu":
            return leaf
        while len(self._memory) <= number:
            self._memory.append(self._empty(0))
        if len(self._memory[number]) < leaf.nbytes:
            self._memory[number] = self._empty(leaf.nbytes)
        memory = self._memory[number][: leaf.nbytes]
        return memory.view(leaf.dtype).view(leaf.shape).copy_(leaf)


def through_pinned(
    place: Callable[[Tree], Tree], buffers: int, device: torch.device
) -> Callable[[Tree], Tree]:
    """The placement, from a host batch that lies in one of so many page-locked buffers.

    A buffer is written to again only when the device has done what it was asked for behind the
    last copy out of it; until then the host waits. Of one thread at a time.
    """
    ring = cycle([Buffer() for _ in range(buffers)])

    def call(batch: Tree) -> Tree:
        buffer = next(ring)
        if buffer.copied is not None:
            buffer.copied.synchronize()
        placed = place(buffer.filled(batch))
        buffer.copied = torch.cuda.current_stream(device).record_event()
        return placed

    return call
