"""Set and measure the state of the system's page cache for a job's files: `cache=as_is|warm|cold`.

`warm` reads the files before a window, `cold` evicts them, and `as_is` does neither.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from fastloop.core.atomic_files import flush_to_disk
from fastloop.processes.rank_group import barrier
from fastloop.trial.job_settings import CacheState
from fastloop.trial.reopenable_loader import ReopenableLoader

COLD_FRACTION = 0.05
"""Files count as cold if at most this share of their pages is in memory: opening a loader reads
headers, and the kernel reads ahead."""
CAN_EVICT = hasattr(os, "posix_fadvise")
"""True if the system can drop files from its page cache; macOS can't."""
READ_BYTES = 1 << 20
"""Bytes that `warm` reads at a time."""


def set_cache_state(
    state: CacheState, files: Sequence[Path], loading: ReopenableLoader
) -> tuple[float | None, float | None]:
    """Bring the files into the cache state `state`; all ranks call this together.

    loading: the open loader of the files, which is reopened for `cold`.
    Returns the shares of the files' pages in memory before and after, as `resident_fraction` does.
    """
    before = resident_fraction(files)
    if state == "warm":
        warm(files)
    elif state == "cold":
        loading.reopen(lambda: evict_on_all_ranks(files))
    return before, resident_fraction(files)


def evict_on_all_ranks(files: Sequence[Path]) -> None:
    """Evict the files on every node; all ranks call this together."""
    # The barriers ensure that no rank has the files mapped: mapped pages would stay.
    barrier()
    evict(files)
    barrier()


def evict(paths: Iterable[Path]) -> None:
    """Drop the pages of these files, and of files below these folders, from the page cache.

    The system must allow this, see CAN_EVICT. Pages that a process has mapped stay in memory.
    """
    for path in files_below(paths):
        # A dirty page is not dropped (posix_fadvise(2), POSIX_FADV_DONTNEED).
        flush_to_disk(path)
        with path.open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(paths: Iterable[Path]) -> None:
    """Read every byte of these files, and of files below these folders, into the page cache."""
    buffer = bytearray(READ_BYTES)
    for path in files_below(paths):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def resident_fraction(paths: Iterable[Path]) -> float | None:
    """Share of these files' pages that are in memory, 0 to 1; None if the system can't report it.

    Also None if the files have no pages. The query loads no page.
    """
    counts = [_resident_pages(path) for path in files_below(paths)]
    known = [count for count in counts if count is not None]
    pages = sum(pages for _, pages in known)
    if len(known) < len(counts) or not pages:
        return None
    return sum(resident for resident, _ in known) / pages


def total_mib(paths: Iterable[Path]) -> float:
    """Size of these files and of all files below these folders, in MiB."""
    return sum(path.stat().st_size for path in files_below(paths)) / 2**20


def files_below(paths: Iterable[Path]) -> list[Path]:
    """The files among the paths, and all files below the folders among them, each once."""
    nested = (path.rglob("*") if path.is_dir() else [path] for path in paths)
    return [path for path in dict.fromkeys(chain.from_iterable(nested)) if path.is_file()]


def _resident_pages(path: Path) -> tuple[int, int] | None:
    """Number of pages in memory, and of all pages; None if the system can't report it."""
    # mincore(2) fills a byte for each page of a mapping, and loads no page. Linux answers only the
    # file's owner and users who may write to it; for other users every page seems resident:
    # https://git.kernel.org/torvalds/c/134fca9063ad4851de767d1768180e5dede9a881
    size = path.stat().st_size
    if size == 0:
        return 0, 0
    if sys.platform != "linux" or not _may_query(path):
        return None
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    with (
        path.open("rb", buffering=0) as file,
        mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as mapped,
    ):
        # mmap does not expose its address; an array over it does.
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        failed = _libc().mincore(
            ctypes.c_void_p(address), ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)
        )
    # Only the lowest bit is defined.
    return None if failed else (int((pages & 1).sum()), len(pages))


def _may_query(path: Path) -> bool:
    """True if mincore(2) tells this process which pages of the file are in memory."""
    return path.stat().st_uid == os.geteuid() or os.access(path, os.W_OK)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
