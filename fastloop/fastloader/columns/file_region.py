"""The location of a memory map's data in its file: to map it again in another process, or to read
it.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns.column import Tree


@dataclass(frozen=True)
class FileRegion:
    """The contiguous part of a file that a memory map shows."""

    path: str
    offset: int
    """The offset in the file, in bytes."""
    dtype: np.dtype
    shape: tuple[int, ...]
    is_writable: bool
    """True if writing to the map writes to the file."""
    inode: tuple[int, int]
    """Device and inode number: the path may since belong to another file."""

    def open(self) -> np.memmap:
        """Map the region."""
        mode = "r+" if self.is_writable else "r"
        return np.memmap(self.path, self.dtype, mode, self.offset, self.shape)


def region_of(array: Any) -> FileRegion | None:
    """Return the place in a file of the data of a memory map, or of a contiguous part of one.

    None for anything else, and if the file may hold other data: a writable copy-on-write map, a
    deleted file.
    """
    whole, path = getattr(array, "_mmap", None), getattr(array, "filename", None)
    if whole is None or path is None or not array.nbytes or not array.flags.c_contiguous:
        return None
    if array.mode == "c" and array.flags.writeable:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    # array.offset is the start of the whole map, also if the array is a part of it.
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    offset = begin + array.ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data
    inode = status.st_dev, status.st_ino
    writable = array.flags.writeable
    return FileRegion(os.fspath(path), offset, array.dtype, array.shape, writable, inode)


def pack_maps(tree: Tree) -> Tree:
    """Replace each memory map in the tree by its FileRegion; numpy would pickle all of its bytes.

    Maps without a region stay as they are.
    """
    return pytree.tree_map(lambda leaf: region_of(leaf) or leaf, tree)


def unpack_maps(tree: Tree) -> Tree:
    """Map the files of a tree again that `pack_maps` has packed."""
    return pytree.tree_map(lambda leaf: leaf.open() if isinstance(leaf, FileRegion) else leaf, tree)
