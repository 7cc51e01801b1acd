"""Rows of a file that is larger than memory: read whole neighbourhoods at a time, and not kept.

A mapped file is read by page faults: each waits for the disk, and what is read stays until the
kernel is short of memory. Where rows that are asked for at once lie one behind the other (shuffle=
Blocks, or the source's own order) they are read as long stretches into memory of our own instead,
past the page cache (O_DIRECT): it would be full of what is not needed again, and to fill and empty
it took 2.7 s of a core for 4 GiB, where this takes 0.3 to 0.4. Where a file system has no such
thing, the disk is told of all stretches first, and the page cache forgets what has been read. Of
several ranks each has whole blocks of Blocks, so that stretches are as long and no rank reads
another one's.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from fastloop.fastloader.columns import Column
from fastloop.fastloader.convert import Converted
from fastloop.fastloader.places import Place
from fastloop.fastloader.rows import Rows
from fastloop.fastloader.source import Source
from fastloop.limits import usable_memory_bytes

CAN_ADVISE = hasattr(os, "posix_fadvise") and hasattr(os, "preadv")
"""Not on macOS."""
MEMORY_SHARE = 0.5
"""Files that take more than this share of memory would push out what is needed."""
STRETCH_BYTES = 256 << 10
"""Shorter ones are not read faster than the kernel does by itself."""
PAGE = 4096
"""What reads past the page cache begins at, ends at, and is read to, are multiples of it."""
AT_ONCE_BYTES = 8 << 20
"""Of such a read."""


class Streamed:
    """A column of the rows of a file, or of what is converted of them, read where they are asked
    for."""

    def __init__(self, column: Rows | Converted, place: Place) -> None:
        self.kind, self._column, self._place = column.kind, column, place
        self._row = _rows(column).kind
        self._scratch = threading.local()
        self._file: Opened | None = None

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._column)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Read those rows, each stretch of neighbours at once, and put them in their order.

        Raises OSError, which names the file, where it is shorter than it was.
        """
        order = np.argsort(indices)
        read = Rows(self._read(indices[order]), self._row)
        # read[k] belongs to order[k]: gathering with the inverse writes each row of `out` once
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        column = self._column
        (replace(column, rows=read) if isinstance(column, Converted) else read).fill(places, out)

    def _read(self, rising: np.ndarray) -> np.ndarray:
        """(n, nbytes) uint8 of those rows, in memory of this thread."""
        nbytes, read = self._row.nbytes, self._own(len(rising))
        ends = [*(np.flatnonzero(np.diff(rising) != 1) + 1).tolist(), len(rising)]
        starts = [0, *ends[:-1]]
        spans = [
            (start, self._place.offset + int(rising[start]) * nbytes, (end - start) * nbytes)
            for start, end in zip(starts, ends, strict=True)
        ]
        file = self._opened()
        for _, offset, size in spans:
            file.will_need(offset, size)
        flat = read.reshape(-1)
        for start, offset, size in spans:
            file.read_into(flat[start * nbytes :][:size], offset)
        return read

    def _own(self, rows: int) -> np.ndarray:
        """Memory of this thread, kept: pages that are touched first are slow."""
        held = getattr(self._scratch, "held", None)
        if held is None or len(held) < rows:
            held = self._scratch.held = np.empty((rows, self._row.nbytes), np.uint8)
        return held[:rows]

    def _opened(self) -> Opened:
        if self._file is None:
            self._file = Opened(self._place)  # two threads at once: one of them is closed
        return self._file


@dataclass(frozen=True, eq=False)
class Opened:
    """A file that is open for as long as this object lives."""

    place: Place
    number: int = field(init=False)
    is_direct: bool = field(init=False)
    """Past the page cache."""
    _pages: threading.local = field(init=False, default_factory=threading.local)

    def __post_init__(self) -> None:
        number, is_direct = _open(self.place.path)
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "is_direct", is_direct)
        weakref.finalize(self, os.close, number)
        found = os.fstat(number)
        if (found.st_dev, found.st_ino) != self.place.inode:
            raise OSError(f"{self.place.path}: another file than the one that is mapped")

    def will_need(self, offset: int, size: int) -> None:
        """Let the disk begin to read that, where the page cache is read from."""
        if not self.is_direct:
            os.posix_fadvise(self.number, offset, size, os.POSIX_FADV_WILLNEED)

    def read_into(self, out: np.ndarray, offset: int) -> None:
        """Fill out, uint8, with what stands there, whoever reads elsewhere at the same time; the
        page cache keeps nothing of it. Raises OSError where the file ends before that."""
        done = 0
        while done < len(out):
            read = self._direct if self.is_direct else self._cached
            if not (count := read(out[done:], offset + done)):
                raise OSError(f"{self.place.path}: it ends at byte {offset + done}, rows go on")
            done += count

    def _cached(self, out: np.ndarray, offset: int) -> int:
        count = os.preadv(self.number, [out.data], offset)
        os.posix_fadvise(self.number, offset, count, os.POSIX_FADV_DONTNEED)
        return count

    def _direct(self, out: np.ndarray, offset: int) -> int:
        """How many bytes of it have been filled, by way of whole pages of this thread's."""
        if not hasattr(self._pages, "held"):
            self._pages.held = _pages(AT_ONCE_BYTES)
        before = offset % PAGE
        size = min(AT_ONCE_BYTES, -(-(before + len(out)) // PAGE) * PAGE)
        pages = self._pages.held[:size]
        count = min(len(out), os.preadv(self.number, [pages.data], offset - before) - before)
        if count > 0:
            out[:count] = pages[before : before + count]
        return max(0, count)


def _open(path: str) -> tuple[int, bool]:
    """The number of the file, and whether it is read past the page cache."""
    if hasattr(os, "O_DIRECT"):
        with suppress(OSError):  # not every file system has that
            number = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                os.preadv(number, [_pages(PAGE).data], 0)
            except OSError:
                os.close(number)
                raise
            return number, True
    return os.open(path, os.O_RDONLY), False


def _pages(nbytes: int) -> np.ndarray:
    """(nbytes,) uint8 that begin at a page; a fork has its own, unlike of an mmap.mmap(-1, …)."""
    more = np.empty(nbytes + PAGE, np.uint8)
    return more[-more.ctypes.data % PAGE :][:nbytes]


def streamed(source: Source, first: np.ndarray, held: int) -> Source | None:
    """The source with what it has of mapped files read this way; None where it is not to be.

    first: indices that are asked for at once; held: how many such pieces lie in memory at a time,
    where they are shuffled. It is where the files would take more than MEMORY_SHARE of memory and
    these pieces do not, and where the indices make stretches of STRETCH_BYTES on average.
    """
    rows = [_rows(one) for one in source.columns if isinstance(one, Rows | Converted)]
    lying = [one for one in rows if one.place]
    if not CAN_ADVISE or not len(first) or not lying:
        return None
    most = MEMORY_SHARE * usable_memory_bytes()
    if sum(one.kind.nbytes * len(one) for one in lying) <= most:
        return None
    nbytes = sum(source.row_nbytes)
    if len(first) * nbytes * held > most and (np.diff(first) <= 0).any():
        return None
    stretches = 1 + int((np.diff(np.sort(first)) != 1).sum())
    return replace(
        source, columns=[_streamed(one, len(first) / stretches) for one in source.columns]
    )


def _rows(column: Rows | Converted) -> Rows:
    return column.rows if isinstance(column, Converted) else column


def _streamed(column: Column, neighbours: float) -> Column:
    if not isinstance(column, Rows | Converted):
        return column
    rows = _rows(column)
    if rows.place is None or neighbours * rows.kind.nbytes < STRETCH_BYTES:
        return column
    return Streamed(column, rows.place)
