"""`pinned_buffers=N`: page-locked buffers that are allocated once and reused for all batches.

A DataLoader's `pin_memory` allocates page-locked memory for every batch, from torch's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count, cycle
from typing import Any

import torch

from fastloop.core.trees import map_tensors
from fastloop.core.types import Tree

empty_pinned = partial(torch.empty, dtype=torch.uint8, pin_memory=True)


class PinnedBuffer:
    """Memory for the tensors of one batch; grows for a larger batch, and never shrinks.

    empty: a function from a number of bytes to a uint8 tensor.
    """

    def __init__(self, empty: Callable[[int], torch.Tensor] = empty_pinned) -> None:
        self._empty = empty
        self._memory: list[torch.Tensor] = []
        self.copied: Any = None
        """CUDA event after the last copy from this buffer; None before the first."""

    def fill(self, batch: Tree) -> Tree:
        """Copy the batch into this memory; tensors that are not on the host stay as they are."""
        indices = count()
        return map_tensors(lambda leaf: self._copy_leaf(next(indices), leaf), batch)

    def _copy_leaf(self, index: int, leaf: torch.Tensor) -> torch.Tensor:
        if leaf.device.type != "cpu":
            return leaf
        while len(self._memory) <= index:
            self._memory.append(self._empty(0))
        if len(self._memory[index]) < leaf.nbytes:
            self._memory[index] = self._empty(leaf.nbytes)
        memory = self._memory[index][: leaf.nbytes]
        return memory.view(leaf.dtype).view(leaf.shape).copy_(leaf)


def place_through_pinned(
    place: Callable[[Tree], Tree], buffers: int, device: torch.device
) -> Callable[[Tree], Tree]:
    """The placement `place`, applied after the batch is copied into one of n page-locked buffers.

    A buffer is reused once the device has finished copying from it; until then the host waits. Only
    one thread at a time may call the placement.
    """
    ring = cycle([PinnedBuffer() for _ in range(buffers)])

    def call(batch: Tree) -> Tree:
        buffer = next(ring)
        if buffer.copied is not None:
            buffer.copied.synchronize()
        placed = place(buffer.fill(batch))
        buffer.copied = torch.cuda.current_stream(device).record_event()
        return placed

    return call
