"""The choice of sources to read past the page cache: mapped files larger than memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fastloop.core.cgroup import usable_memory_bytes
from fastloop.fastloader.columns.array import ArrayColumn
from fastloop.fastloader.columns.column import Column
from fastloop.fastloader.columns.convert import ConvertedColumn
from fastloop.fastloader.columns.direct_io import CAN_ADVISE, DirectColumn, underlying_rows
from fastloop.fastloader.source import ColumnSource

MEMORY_SHARE = 0.5
"""Files larger than this share of memory would evict other data from the page cache."""
STRETCH_BYTES = 256 << 10
"""Shorter stretches are read no faster than by the kernel's page faults."""


def may_read_directly(source: object, shuffle: object) -> bool:
    """True for mapped files that exceed MEMORY_SHARE of memory, in an order that has stretches."""
    if shuffle is True or not isinstance(source, ColumnSource) or not CAN_ADVISE:
        return False
    columns = [c for c in source.columns if isinstance(c, ArrayColumn | ConvertedColumn)]
    mapped = [rows for rows in map(underlying_rows, columns) if rows.region]
    return sum(rows.spec.nbytes * len(rows) for rows in mapped) > _max_nbytes()


def use_direct_reads(
    source: ColumnSource, indices: np.ndarray, num_pieces: int
) -> ColumnSource | None:
    """A source that may be read directly, with direct reads; None if they would not pay.

    They pay if the pieces in flight do not exceed MEMORY_SHARE of memory, and the indices form
    stretches of STRETCH_BYTES on average.

    indices: those of the epoch's first piece, which are requested at once. num_pieces: the number
    of such pieces in memory at a time, if they are shuffled.
    """
    if not len(indices):
        return None
    piece_nbytes, max_nbytes = len(indices) * source.row_nbytes, _max_nbytes()
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
