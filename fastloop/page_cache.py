"""The state of the page cache for some files: dropped, filled, looked at; without being root.

What can't be done or seen:
- A page that any process has mapped and touched stays: whoever evicts closes its mappings first
  (measured in tests/test_page_cache.py; "Pages mapped by some process" in
  https://man7.org/linux/man-pages/man2/posix_fadvise.2.html are not named, the kernel's
  `mapping_try_invalidate` skips them).
- tmpfs has no disk to read from: nothing is evicted, and all of it stays resident.
- NFS, FUSE and ZFS have caches of their own (the server's, the ARC): cold here may be warm there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fastloop.files import flushed

CAN_EVICT = hasattr(os, "posix_fadvise")
"""Not on macOS."""
READ_BYTES = 1 << 20


def evict(paths: Iterable[Path]) -> None:
    """Drop the pages of these files, and of all below these folders, from the page cache."""
    for path in files_below(paths):
        flushed(path)  # a page that is not written back yet is not dropped
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(paths: Iterable[Path]) -> None:
    """Read every byte of these files, and of all below these folders, and keep none of them."""
    buffer = bytearray(READ_BYTES)
    for path in files_below(paths):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def resident_fraction(paths: Iterable[Path]) -> float | None:
    """Share of these files' pages that lie in memory, 0 to 1; None where the system does not tell.

    Maps each file without touching it and asks mincore, so that asking changes nothing.
    """
    counts = [_resident_pages(path) for path in files_below(paths)]
    told = [count for count in counts if count is not None]
    pages = sum(pages for _, pages in told)
    if len(told) < len(counts) or not pages:
        return None
    return sum(resident for resident, _ in told) / pages


def total_mib(paths: Iterable[Path]) -> float:
    """Size of these files, and of all below these folders."""
    return sum(path.stat().st_size for path in files_below(paths)) / 2**20


def files_below(paths: Iterable[Path]) -> list[Path]:
    """The files themselves, and those in the folders among them, each once."""
    found = [one for path in paths for one in (path.rglob("*") if path.is_dir() else [path])]
    return [path for path in dict.fromkeys(found) if path.is_file()]


def _resident_pages(path: Path) -> tuple[int, int] | None:
    """Pages in memory, and all; None where the system does not tell.

    It tells only who owns the file or may write it, and calls every page resident to others:
    https://git.kernel.org/torvalds/c/134fca9063ad4851de767d1768180e5dede9a881
    """
    size = path.stat().st_size
    if size == 0:
        return 0, 0
    if sys.platform != "linux" or not _may_ask(path):
        return None
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    with (
        path.open("rb", buffering=0) as file,
        mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as mapped,
    ):
        address = np.frombuffer(mapped, np.uint8).ctypes.data  # mmap itself does not tell where
        failed = _libc().mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
        )
    return None if failed else (int((pages & 1).sum()), len(pages))


def _may_ask(path: Path) -> bool:
    return path.stat().st_uid == os.geteuid() or os.access(path, os.W_OK)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
