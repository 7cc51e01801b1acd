"""Rows of a file larger than memory: whole stretches are read at a time, past the page cache.

A mapped file is read by page faults: each waits for the disk, and the pages stay until the kernel
runs short of memory. If the rows requested at once are neighbours (shuffle=Blocks, or sequential
order) they are read as long stretches into private memory instead, past the page cache (O_DIRECT),
which would fill with data that is not needed again: filling and evicting it took 2.7 s of a core
for 4 GiB, direct reads 0.3 to 0.4 s. On file systems without O_DIRECT each stretch is dropped from
the page cache once read. Each rank has whole blocks of Blocks, so stretches stay as long with
several ranks, and no rank reads another one's data.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

import numpy as np

from fastloop.core.cgroup import usable_memory_bytes
from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.columns.array import ArrayColumn
from fastloop.fastloader.columns.column import Column
from fastloop.fastloader.columns.convert import ConvertedColumn
from fastloop.fastloader.columns.mapped_file import FileIdentity, FileRegion

MEMORY_SHARE = 0.5
"""Files larger than this share of memory would evict other data from the page cache."""
STRETCH_BYTES = 256 << 10
"""Shorter stretches are read no faster than by the kernel's page faults."""
CAN_ADVISE = hasattr(os, "posix_fadvise") and hasattr(os, "preadv")
"""False on macOS."""
PAGE = 4096
"""Offset, length and memory address of a direct read are multiples of this."""


def may_read_directly(source: object, shuffle: object) -> bool:
    """True if the source is a mapped file larger than MEMORY_SHARE of memory, and the order has
    long stretches."""
    if shuffle is True or not isinstance(source, ColumnSource) or not CAN_ADVISE:
        return False
    columns = [c for c in source.columns if isinstance(c, ArrayColumn | ConvertedColumn)]
    mapped = [rows for rows in map(underlying_rows, columns) if rows.region]
    return sum(rows.spec.nbytes * len(rows) for rows in mapped) > _max_nbytes()


def use_direct_reads(
    source: ColumnSource, indices: np.ndarray, num_pieces: int
) -> ColumnSource | None:
    """The source with direct reads, past the page cache; None if there are no indices, or if
    shuffled pieces in memory would exceed MEMORY_SHARE of memory.

    A column is read directly if its rows form stretches of STRETCH_BYTES on average; others are
    read as before.

    source: one that may be read directly, see may_read_directly. indices: those of the epoch's
    first piece, which are requested at once. num_pieces: the number of such pieces in memory at a
    time, if they are shuffled.
    """
    if not len(indices):
        return None
    piece_nbytes = len(indices) * source.row_nbytes
    max_nbytes = _max_nbytes()
    # A piece in the source's own order is read batch by batch, and never in memory as a whole.
    if piece_nbytes * num_pieces > max_nbytes and (np.diff(indices) <= 0).any():
        return None
    stretches = 1 + int((np.diff(np.sort(indices)) != 1).sum())
    mean_rows = len(indices) / stretches
    columns = [_direct_column(column, mean_rows) for column in source.columns]
    return replace(source, columns=columns)


def _max_nbytes() -> float:
    return MEMORY_SHARE * usable_memory_bytes()


def _direct_column(column: Column, stretch_rows: float) -> Column:
    if not isinstance(column, ArrayColumn | ConvertedColumn):
        return column
    rows = underlying_rows(column)
    if rows.region is None or stretch_rows * rows.spec.nbytes < STRETCH_BYTES:
        return column
    return DirectColumn(column, rows.region)


class DirectColumn:
    """A column of rows that are read from a file when they are requested, and then converted if the
    underlying column converts."""

    def __init__(self, column: ArrayColumn | ConvertedColumn, region: FileRegion) -> None:
        self.spec = column.spec
        self._column = column
        self._region = region

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._column)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Read the rows at `indices`, each stretch of neighbours at once, and write them to `out`.

        Raises OSError that names the file if it has become shorter.
        """
        spec = underlying_rows(self._column).spec
        order = np.argsort(indices)
        ends = np.flatnonzero(np.diff(indices[order]) != 1) + 1
        for places in np.split(order, ends):
            offset = self._region.offset + int(indices[places[0]]) * spec.nbytes
            data = self._file.read(offset, len(places) * spec.nbytes)
            rows = ArrayColumn(data.reshape(len(places), spec.nbytes), spec)
            out[places] = self._convert(rows)

    @cached_property
    def _file(self) -> DirectFile:
        # Two threads may open the file at the same time. One of the two objects is then dropped,
        # which closes its file.
        return DirectFile(self._region)

    def _convert(self, rows: ArrayColumn) -> np.ndarray:
        if not isinstance(self._column, ConvertedColumn):
            return rows.flat
        out = np.empty((len(rows), self.spec.nbytes), np.uint8)
        replace(self._column, rows=rows).fill(np.arange(len(rows)), out)
        return out


class DirectFile:
    """A file that is open for as long as this object lives."""

    def __init__(self, region: FileRegion) -> None:
        self._path = region.path
        self._thread = threading.local()
        self._descriptor = _open_descriptor(region.path)
        weakref.finalize(self, os.close, self._descriptor)
        if FileIdentity.of(os.fstat(self._descriptor)) != region.identity:
            raise OSError(f"{region.path}: the file was replaced since it was mapped")

    def read(self, offset: int, size: int) -> np.ndarray:
        """(size,) uint8 of the file, in memory that this thread reuses; the page cache keeps none.

        Raises OSError if the file ends before that.
        """
        # The rows may begin anywhere, a direct read only at a page: it begins before and ends after
        # them.
        before = offset % PAGE
        done = 0
        pages = self._pages(-(-(before + size) // PAGE) * PAGE)
        while done < before + size:
            count = os.preadv(self._descriptor, [pages[done:].data], offset - before + done)
            # Without O_DIRECT the page cache has the stretch now; with it this does nothing.
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_DONTNEED)
            done += count
            # If a direct read ends within a page, it has reached the end of the file.
            if not count or (count % PAGE and done < before + size):
                end = offset - before + done
                raise OSError(f"{self._path}: the file ends at byte {end}, within the rows")
        return pages[before:][:size]

    def _pages(self, nbytes: int) -> np.ndarray:
        """Memory of this thread, kept because the first touch of fresh pages is slow."""
        pages = getattr(self._thread, "pages", None)
        if pages is None or len(pages) < nbytes:
            pages = self._thread.pages = _allocate_pages(nbytes)
        return pages[:nbytes]


def _open_descriptor(path: str) -> int:
    """A file descriptor that reads past the page cache if the file system can."""
    if hasattr(os, "O_DIRECT"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                # Some file systems open a file with O_DIRECT and refuse to read it.
                os.preadv(descriptor, [_allocate_pages(PAGE).data], 0)
            except OSError:
                os.close(descriptor)
                raise
            return descriptor
    return os.open(path, os.O_RDONLY)


def _allocate_pages(nbytes: int) -> np.ndarray:
    """(nbytes,) uint8 that start at a page; private to a fork, unlike mmap.mmap(-1, ...)."""
    memory = np.empty(nbytes + PAGE, np.uint8)
    return memory[-memory.ctypes.data % PAGE :][:nbytes]


def underlying_rows(column: ArrayColumn | ConvertedColumn) -> ArrayColumn:
    """The rows that the column delivers or converts."""
    return column.rows if isinstance(column, ConvertedColumn) else column
