"""Rows of a file larger than memory: whole stretches are read at a time, past the page cache.

A mapped file is read by page faults: each waits for the disk, and the pages stay until the kernel
runs short of memory. Where the rows requested at once are neighbours (shuffle=Blocks, or sequential
order) they are read as long stretches into private memory instead, past the page cache (O_DIRECT),
which would fill with data that is not needed again: filling and evicting it took 2.7 s of a core
for 4 GiB, direct reads 0.3 to 0.4 s. On file systems without O_DIRECT all stretches are announced
to the kernel first (POSIX_FADV_WILLNEED), and dropped from the page cache once read. Each rank has
whole blocks of Blocks, so stretches stay as long with several ranks, and no rank reads another
one's data.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from fastloop.fastloader.columns.array import ArrayColumn
from fastloop.fastloader.columns.convert import ConvertedColumn
from fastloop.fastloader.columns.file_region import FileRegion

CAN_ADVISE = hasattr(os, "posix_fadvise") and hasattr(os, "preadv")
"""False on macOS."""
PAGE = 4096
"""Offset, length and memory address of a direct read are multiples of this."""
READ_BYTES = 8 << 20
"""Size of one direct read."""


class DirectColumn:
    """A column whose rows are read from a file when they are requested, and then converted if the
    underlying column converts."""

    def __init__(self, column: ArrayColumn | ConvertedColumn, region: FileRegion) -> None:
        self.spec, self._column, self._region = column.spec, column, region
        self._row_spec = underlying_rows(column).spec
        self._scratch = threading.local()
        self._file: DirectFile | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._column)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Read the rows at `indices`, each stretch of neighbours at once, and write them to `out`.

        Raises OSError that names the file where it has become shorter.
        """
        order = np.argsort(indices)
        read = ArrayColumn(self._read(indices[order]), self._row_spec)
        # read[k] belongs to order[k]: gathering with the inverse writes each row of `out` once
        positions = np.empty_like(order)
        positions[order] = np.arange(len(order))
        column = self._column
        is_converted = isinstance(column, ConvertedColumn)
        (replace(column, rows=read) if is_converted else read).fill(positions, out)

    def _read(self, sorted_indices: np.ndarray) -> np.ndarray:
        """(n, nbytes) uint8 of those rows, in memory that this thread reuses."""
        nbytes, rows = self._row_spec.nbytes, self._scratch_rows(len(sorted_indices))
        stops = [*(np.flatnonzero(np.diff(sorted_indices) != 1) + 1).tolist(), len(sorted_indices)]
        starts = [0, *stops[:-1]]
        spans = [
            (
                start,
                self._region.offset + int(sorted_indices[start]) * nbytes,
                (stop - start) * nbytes,
            )
            for start, stop in zip(starts, stops, strict=True)
        ]
        file = self._open_file()
        for _, offset, size in spans:
            file.will_need(offset, size)
        flat = rows.reshape(-1)
        for start, offset, size in spans:
            file.read_into(flat[start * nbytes :][:size], offset)
        return rows

    def _scratch_rows(self, count: int) -> np.ndarray:
        """Memory of this thread, kept because the first touch of fresh pages is slow."""
        rows = getattr(self._scratch, "rows", None)
        if rows is None or len(rows) < count:
            rows = self._scratch.rows = np.empty((count, self._row_spec.nbytes), np.uint8)
        return rows[:count]

    def _open_file(self) -> DirectFile:
        if self._file is None:
            self._file = DirectFile(self._region)  # of two racing threads' files one is closed
        return self._file


@dataclass(frozen=True, eq=False)
class DirectFile:
    """A file that is open for as long as this object lives."""

    region: FileRegion
    descriptor: int = field(init=False)
    is_direct: bool = field(init=False)
    """True where reads bypass the page cache."""
    _pages: threading.local = field(init=False, default_factory=threading.local)

    def __post_init__(self) -> None:
        descriptor, is_direct = _open_descriptor(self.region.path)
        object.__setattr__(self, "descriptor", descriptor)
        object.__setattr__(self, "is_direct", is_direct)
        weakref.finalize(self, os.close, descriptor)
        status = os.fstat(descriptor)
        if (status.st_dev, status.st_ino) != self.region.inode:
            raise OSError(f"{self.region.path}: the file was replaced since it was mapped")

    def will_need(self, offset: int, size: int) -> None:
        """Start reading ahead into the page cache, where reads go through it."""
        if not self.is_direct:
            os.posix_fadvise(self.descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def read_into(self, out: np.ndarray, offset: int) -> None:
        """Fill `out`, uint8, with the file's bytes from `offset` on; the page cache keeps none.

        Thread-safe. Raises OSError where the file ends before that.
        """
        done = 0
        while done < len(out):
            read = self._read_direct if self.is_direct else self._read_cached
            if not (count := read(out[done:], offset + done)):
                end = offset + done
                raise OSError(f"{self.region.path}: the file ends at byte {end}, within the rows")
            done += count

    def _read_cached(self, out: np.ndarray, offset: int) -> int:
        count = os.preadv(self.descriptor, [out.data], offset)
        os.posix_fadvise(self.descriptor, offset, count, os.POSIX_FADV_DONTNEED)
        return count

    def _read_direct(self, out: np.ndarray, offset: int) -> int:
        """Fill a first part of `out` by way of this thread's aligned pages; return its length."""
        if not hasattr(self._pages, "array"):
            self._pages.array = _allocate_pages(READ_BYTES)
        before = offset % PAGE
        size = min(READ_BYTES, -(-(before + len(out)) // PAGE) * PAGE)
        pages = self._pages.array[:size]
        read = os.preadv(self.descriptor, [pages.data], offset - before)
        count = min(len(out), read - before)
        if count > 0:
            out[:count] = pages[before : before + count]
        return max(0, count)


def _open_descriptor(path: str) -> tuple[int, bool]:
    """(file descriptor, True where it reads past the page cache)."""
    if hasattr(os, "O_DIRECT"):
        with suppress(OSError):  # not every file system supports it
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                os.preadv(descriptor, [_allocate_pages(PAGE).data], 0)
            except OSError:
                os.close(descriptor)
                raise
            return descriptor, True
    return os.open(path, os.O_RDONLY), False


def _allocate_pages(nbytes: int) -> np.ndarray:
    """(nbytes,) uint8 that start at a page; private to a fork, unlike mmap.mmap(-1, ...)."""
    memory = np.empty(nbytes + PAGE, np.uint8)
    return memory[-memory.ctypes.data % PAGE :][:nbytes]


def underlying_rows(column: ArrayColumn | ConvertedColumn) -> ArrayColumn:
    """The rows that the column delivers or converts."""
    return column.rows if isinstance(column, ConvertedColumn) else column
