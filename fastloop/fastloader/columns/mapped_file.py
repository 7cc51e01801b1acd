"""Files that are mapped into memory and may become shorter, so that reading ends the process."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class MappedFile:
    """The file that an array's memory is mapped from."""

    path: str
    device: int
    inode: int
    end: int
    """The bytes that the file must have, or the system ends the process with SIGBUS."""

    def check(self) -> None:
        """Raise OSError, which names the file, if it has become shorter.

        A file that was replaced or deleted is no problem: the map still shows the old one.
        """
        try:
            status = os.stat(self.path)
        except OSError:
            return
        is_same = (status.st_dev, status.st_ino) == (self.device, self.inode)
        if is_same and status.st_size < self.end:
            raise OSError(describe_cut(self.path, self.end))

    @property
    def native(self) -> tuple[bytes, int, int, int]:
        """The native core's argument."""
        return os.fsencode(self.path), self.device, self.inode, self.end


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
            # The path is another file's now: the map's own size is the old one's.
            return None
    except (OSError, ValueError):
        return None
    # The map begins at a multiple of the granularity, before the array's own offset.
    offset: int = whole.offset  # pyright: ignore[reportOptionalMemberAccess] - it has a map
    begin = offset - offset % mmap.ALLOCATIONGRANULARITY
    # The last item in memory, also of a view with steps: a negative step leads backwards from the
    # first.
    last = array.ctypes.data + sum(
        step * (size - 1) for step, size in zip(array.strides, array.shape, strict=True) if step > 0
    )
    end = begin + last + array.itemsize - np.frombuffer(shown, np.uint8).ctypes.data
    return MappedFile(os.path.abspath(path), status.st_dev, status.st_ino, end)
