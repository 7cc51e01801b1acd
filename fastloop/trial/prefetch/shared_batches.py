"""Batches in one block of shared memory each, to be sent from one process to another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import optree
import torch

from fastloop.core.types import Tree

ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes, a cache line, as torch's own memory
does."""


@dataclass(frozen=True)
class TensorLocation:
    """Position, dtype and shape of a tensor in a block of shared memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor as a view of the memory."""
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        return memory[self.offset : self.offset + nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class SharedBatch:
    """A batch with all its tensors in one block: one file descriptor per batch, whatever its tree.

    torch would send a file descriptor for each tensor, and keep it open as long as the tensor
    lives. The sender writes the memory once; then it belongs to the receiver alone.
    """

    memory: torch.Tensor
    structure: Any
    leaves: list[Any]
    """A TensorLocation for each packed tensor; any other leaf as it is."""

    def unpack(self) -> Tree:
        """The batch, with tensors that are views of the shared memory."""
        leaves = [
            leaf.view(self.memory) if isinstance(leaf, TensorLocation) else leaf
            for leaf in self.leaves
        ]
        return optree.tree_unflatten(self.structure, leaves)


def share_batch(batch: Tree) -> SharedBatch:
    """Copy the batch into new shared memory; leaves other than plain CPU tensors stay as they are,
    and are pickled separately."""
    leaves, structure = optree.tree_flatten(batch)
    packed, end = list(leaves), 0
    for index, leaf in enumerate(leaves):
        if _is_plain(leaf):
            packed[index] = TensorLocation(leaf.dtype, tuple(leaf.shape), end)
            end += -(-leaf.nbytes // ALIGNMENT) * ALIGNMENT
    memory = _allocate_shared(end)
    for leaf, location in zip(leaves, packed, strict=True):
        if isinstance(location, TensorLocation):
            location.view(memory).copy_(leaf)
    return SharedBatch(memory, structure, packed)


def _is_plain(leaf: Any) -> bool:
    if type(leaf) is not torch.Tensor or leaf.device.type != "cpu":
        return False
    return leaf.layout is torch.strided and not (leaf.is_nested or leaf.is_quantized)


def _allocate_shared(nbytes: int) -> torch.Tensor:
    # share_memory_() of a new tensor would copy its memory, which has no content yet
    storage = torch.UntypedStorage._new_shared(nbytes) if nbytes else torch.UntypedStorage(0)
    return torch.empty(0, dtype=torch.uint8).set_(storage)
