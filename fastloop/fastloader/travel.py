"""A source on its way to another process: what is mapped from a file is mapped again there."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns import Tree


@dataclass(frozen=True)
class Mapped:
    """What numpy.memmap needs: numpy pickles a memory map as all of its bytes."""

    filename: str
    dtype: np.dtype
    mode: Any
    offset: int
    shape: tuple[int, ...]

    def opened(self) -> np.memmap:
        """The same map."""
        return np.memmap(self.filename, self.dtype, self.mode, self.offset, self.shape)


def packed(tree: Tree) -> Tree:
    """The tree with a Mapped in the place of each whole memory map."""
    return pytree.tree_map(_packed, tree)


def unpacked(tree: Tree) -> Tree:
    """The tree that was packed."""
    return pytree.tree_map(lambda one: one.opened() if isinstance(one, Mapped) else one, tree)


def _packed(leaf: Any) -> Any:
    # a part of a map, which has an array for its base, does not tell where it begins
    if not isinstance(leaf, np.memmap) or not isinstance(leaf.base, mmap.mmap):
        return leaf
    if leaf.filename is None or not leaf.flags.c_contiguous:
        return leaf
    if leaf.mode == "c" and leaf.flags.writeable:  # what was written to it is not in the file
        return leaf
    mode = "r+" if leaf.mode == "w+" else leaf.mode  # which would empty the file
    return Mapped(str(leaf.filename), leaf.dtype, mode, leaf.offset, leaf.shape)
