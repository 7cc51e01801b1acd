"""The file that a memory map of numpy shows: checked before the map is read, or mapped again.

`find_file` returns a MappedFile, which is checked before its map is read, because reading the map
ends the process if the file has become shorter. `region_of` returns a FileRegion, the part of the
file that the map shows. Another process can map that part again, or read it.
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
    """The file from which an array's memory is mapped."""

    path: str
    """The absolute path of the file."""
    identity: FileIdentity
    end: int
    """Minimum size of the file in bytes. If the file is shorter, the system ends a process that
    reads the whole array, by the signal SIGBUS."""

    def check(self) -> None:
        """Raise OSError, with the path in the message, if the file is shorter than `end`.

        A file that was replaced or deleted raises no error, because the map still shows its data.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            # The file was deleted, or can't be asked.
            return
        if FileIdentity.of(status) == self.identity and status.st_size < self.end:
            # The native core has the same message.
            problem = f"{self.path}: this file has become shorter"
            raise OSError(f"{problem} than the {self.end} bytes that are mapped")

    @property
    def native(self) -> tuple[bytes, int, int, int]:
        """The file as the native core takes it: (path, device, inode, end)."""
        return os.fsencode(self.path), self.identity.device, self.identity.inode, self.end


def find_file(array: Any) -> MappedFile | None:
    """The file that a memory map of numpy, or a view of one, shows.

    None for other memory, for an empty array, for a closed map, and if the path has no file of the
    mapped file's size.
    """
    # `base` of a view is the array that the view was made of.
    whole: Any = array
    while isinstance(whole, np.ndarray) and not isinstance(whole, np.memmap):
        whole = whole.base
    path = _path_of(whole)
    if path is None or not array.nbytes:
        return None
    try:
        status = os.stat(path)
        # size() is the present size of the mapped file. If the sizes differ, another file now has
        # this path. A closed map raises ValueError.
        if status.st_size != whole._mmap.size():  # pyright: ignore[reportAttributeAccessIssue]
            return None
    except (OSError, ValueError):
        return None
    # The highest address of an item. Axes with negative steps are left out, because they lead to
    # lower addresses.
    last = array.ctypes.data + sum(
        step * (size - 1) for step, size in zip(array.strides, array.shape, strict=True) if step > 0
    )
    end = _file_offset(whole, last) + array.itemsize
    return MappedFile(os.path.abspath(path), FileIdentity.of(status), end)


def _path_of(array: Any) -> Any:
    """The path of the file that a memory map shows; None for any other object."""
    # An array that numpy has computed from a map is a np.memmap, too, but shows no file.
    if getattr(array, "_mmap", None) is None:
        return None
    return getattr(array, "filename", None)


def _file_offset(array: Any, address: int) -> int:
    """The offset in the file, in bytes, of an address in a memory map of the file.

    array: the map, or a part of one.
    """
    # `offset` is the start of the whole array in the file, even if `array` is only a part. The map
    # begins at a multiple of the granularity, at or before `offset`.
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return begin + address - np.frombuffer(array._mmap, np.uint8).ctypes.data


@dataclass(frozen=True)
class FileRegion:
    """The contiguous part of a file that a memory map shows."""

    path: str
    offset: int
    """The start of the region in the file, in bytes."""
    dtype: np.dtype
    shape: tuple[int, ...]
    is_writable: bool
    """True if writing to the map writes to the file."""
    identity: FileIdentity
    """The identity of the file that had the path when `region_of` was called. Another file may have
    taken the path since."""

    def open(self) -> np.memmap:
        """Map the region of the file that now has the path."""
        mode = "r+" if self.is_writable else "r"
        return np.memmap(self.path, self.dtype, mode, self.offset, self.shape)


def region_of(array: Any) -> FileRegion | None:
    """The region of the file that a memory map, or a contiguous part of one, shows.

    None for any other object, for a deleted file, and for a writable copy-on-write map, which may
    differ from its file.
    """
    path = _path_of(array)
    if path is None or not array.nbytes or not array.flags.c_contiguous:
        return None
    # "c" is copy-on-write: the program's changes stay in memory.
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
    """Replace each memory map in the tree by its FileRegion, which is small when pickled.

    numpy would pickle all bytes of a map. Maps without a region stay as they are.
    """
    return pytree.tree_map(lambda leaf: region_of(leaf) or leaf, tree)


def unpack_maps(tree: Tree) -> Tree:
    """Replace each FileRegion in the tree by a new map of it; undoes `pack_maps`."""
    return pytree.tree_map(lambda leaf: leaf.open() if isinstance(leaf, FileRegion) else leaf, tree)
