"""MappedFile and FileRegion: the file that a memory map shows, and the map's part of this file.

A MappedFile is checked before its map is read: if the file has become shorter, reading the map ends
the process. A FileRegion locates a map's data in its file, to map it again in another process, or
to read it.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns.column import Tree


class FileIdentity(NamedTuple):
    """The identity of a file, which another file at the same path does not have."""

    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """The identity of the file with this status."""
        return cls(status.st_dev, status.st_ino)


@dataclass(frozen=True)
class MappedFile:
    """The file that an array's memory is mapped from."""

    path: str
    identity: FileIdentity
    end: int
    """Minimum size of the file in bytes: if it is shorter, the system ends a process that reads the
    map with SIGBUS."""

    def check(self) -> None:
        """Raise OSError, which names the file, if it has become shorter.

        A file that was replaced or deleted is not a problem: the map still shows the old one.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            return
        if FileIdentity.of(status) == self.identity and status.st_size < self.end:
            raise OSError(describe_cut(self.path, self.end))

    @property
    def native(self) -> tuple[bytes, int, int, int]:
        """The native core's argument."""
        return os.fsencode(self.path), self.identity.device, self.identity.inode, self.end


def describe_cut(path: str, end: int) -> str:
    """The sentence of the error, which the native core prints too."""
    return f"{path}: this file has become shorter than the {end} bytes that are mapped"


def find_file(array: Any) -> MappedFile | None:
    """The file that a memory map of numpy, or a view of one, shows; None for other memory."""
    whole = array
    while isinstance(whole, np.ndarray) and not isinstance(whole, np.memmap):
        whole = whole.base
    shown, path = getattr(whole, "_mmap", None), getattr(whole, "filename", None)
    if shown is None or path is None or not array.nbytes:
        return None
    try:
        status = os.stat(path)
        if status.st_size != shown.size():
            # Another file now has this path: its size differs from the map's.
            return None
    except (OSError, ValueError):
        return None
    # The address of the last item. Axes with negative steps lead to lower addresses and don't
    # count.
    last = array.ctypes.data + sum(
        step * (size - 1) for step, size in zip(array.strides, array.shape, strict=True) if step > 0
    )
    end = _file_offset(whole, last) + array.itemsize
    return MappedFile(os.path.abspath(path), FileIdentity.of(status), end)


def _file_offset(array: Any, address: int) -> int:
    """The place in the file, in bytes, of an address in a memory map of it.

    array: the map, or a part of one.
    """
    # The map begins at a multiple of the granularity, at or before `offset`, which is the start of
    # the whole array, even if this array is a part of it.
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return begin + address - np.frombuffer(array._mmap, np.uint8).ctypes.data


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
    identity: FileIdentity
    """The identity of the mapped file. Another file may have taken its path."""

    def open(self) -> np.memmap:
        """Map the region."""
        mode = "r+" if self.is_writable else "r"
        return np.memmap(self.path, self.dtype, mode, self.offset, self.shape)


def region_of(array: Any) -> FileRegion | None:
    """Return the region of the file that a memory map, or a contiguous part of one, shows.

    None for anything else, and if the file may hold other data: a writable copy-on-write map, a
    deleted file.
    """
    shown, path = getattr(array, "_mmap", None), getattr(array, "filename", None)
    if shown is None or path is None or not array.nbytes or not array.flags.c_contiguous:
        return None
    if array.mode == "c" and array.flags.writeable:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    offset = _file_offset(array, array.ctypes.data)
    return FileRegion(
        path=os.fspath(path),
        offset=offset,
        dtype=array.dtype,
        shape=array.shape,
        is_writable=array.flags.writeable,
        identity=FileIdentity.of(status),
    )


def pack_maps(tree: Tree) -> Tree:
    """Replace each memory map in the tree by its FileRegion; numpy would pickle all of its bytes.

    Maps without a region stay as they are.
    """
    return pytree.tree_map(lambda leaf: region_of(leaf) or leaf, tree)


def unpack_maps(tree: Tree) -> Tree:
    """Replace each FileRegion in the tree by a new map of it; undoes `pack_maps`."""
    return pytree.tree_map(lambda leaf: leaf.open() if isinstance(leaf, FileRegion) else leaf, tree)
