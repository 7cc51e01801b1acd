"""Rows of a file that is larger than memory: read whole neighbourhoods at a time, and not kept.

A mapped file is read by page faults: each waits for the disk, and what is read stays until the
kernel is short of memory. Where rows that are asked for at once lie one behind the other (shuffle=
Blocks, or the source's own order) they are read as long stretches into memory of our own instead:
the disk is told of all of them first, so that it is never idle, and the page cache forgets each as
soon as it has been read, so that memory holds what is being gathered and no more. Of several ranks
each has whole blocks of Blocks, so that stretches are as long and no rank reads another one's.
"""

from __future__ import annotations

import os
import threading
import weakref
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
            os.posix_fadvise(file.number, offset, size, os.POSIX_FADV_WILLNEED)
        flat = read.reshape(-1)
        for start, offset, size in spans:
            file.read_into(flat[start * nbytes :][:size], offset)
            os.posix_fadvise(file.number, offset, size, os.POSIX_FADV_DONTNEED)
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

    def __post_init__(self) -> None:
        number = os.open(self.place.path, os.O_RDONLY)
        object.__setattr__(self, "number", number)
        weakref.finalize(self, os.close, number)
        found = os.fstat(number)
        if (found.st_dev, found.st_ino) != self.place.inode:
            raise OSError(f"{self.place.path}: another file than the one that is mapped")

    def read_into(self, out: np.ndarray, offset: int) -> None:
        """Fill out, uint8, with what stands there, whoever reads elsewhere at the same time."""
        left = memoryview(out.data)
        while left:
            count = os.preadv(self.number, [left], offset)
            if not count:
                raise OSError(f"{self.place.path}: it ends at byte {offset}, rows go on")
            left, offset = left[count:], offset + count


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
