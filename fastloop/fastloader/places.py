"""Where memory maps lie in their files."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Place:
    """Where rows lie in a file, without gaps."""

    path: str
    offset: int
    inode: tuple[int, int]
    """Device and inode: the path may come to be another file's."""


def place_of(array: Any) -> Place | None:
    """Where a memory map's rows lie in its file; None for what is no map, or has gaps."""
    whole = getattr(array, "_mmap", None)
    path = getattr(array, "filename", None)
    if whole is None or path is None or not array.flags.c_contiguous or array.flags.writeable:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    begins = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    address = np.frombuffer(whole, np.uint8).ctypes.data
    offset = begins + array.ctypes.data - address
    return Place(os.fspath(path), offset, (found.st_dev, found.st_ino))
