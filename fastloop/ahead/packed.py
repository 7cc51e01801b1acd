"""A batch in one piece of shared memory, as it travels from process to process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import optree
import torch

from fastloop.types import Tree

ALIGNED = 64
"""Bytes: every tensor begins at a multiple of it."""


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the shared memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor that lies there."""
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        return memory[self.offset : self.offset + nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class Packed:
    """A batch whose tensors lie together: one file descriptor a batch, whatever its tree.

    torch would send one for each tensor, each held as long as the tensor is, and hand each over
    by itself. The memory is written once, and is the receiver's alone.
    """

    memory: torch.Tensor
    structure: Any
    leaves: list[Any]
    """A Place, or whatever else the tree holds."""

    def unpacked(self) -> Tree:
        """The batch, in the same memory."""
        leaves = [leaf.of(self.memory) if isinstance(leaf, Place) else leaf for leaf in self.leaves]
        return optree.tree_unflatten(self.structure, leaves)


def packed(batch: Tree) -> Packed:
    """The batch, copied into new shared memory; what is no plain tensor on the host travels by
    itself."""
    leaves, structure = optree.tree_flatten(batch)
    places, end = list(leaves), 0
    for number, leaf in enumerate(leaves):
        if _is_plain(leaf):
            places[number] = Place(leaf.dtype, tuple(leaf.shape), end)
            end += -(-leaf.nbytes // ALIGNED) * ALIGNED
    memory = _shared(end)
    for leaf, place in zip(leaves, places, strict=True):
        if isinstance(place, Place):
            place.of(memory).copy_(leaf)
    return Packed(memory, structure, places)


def _is_plain(leaf: Any) -> bool:
    if type(leaf) is not torch.Tensor or leaf.device.type != "cpu":
        return False
    return leaf.layout is torch.strided and not (leaf.is_nested or leaf.is_quantized)


def _shared(nbytes: int) -> torch.Tensor:
    # share_memory_() would copy what is still to be written
    storage = torch.UntypedStorage._new_shared(nbytes) if nbytes else torch.UntypedStorage(0)
    return torch.empty(0, dtype=torch.uint8).set_(storage)
