"""Columns for the native core: how they describe their rows to it, and how it fills arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch

from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.mapped_file import MappedFile
from fastloop.fastloader.load_native_core import load_core

SOURCE_TYPES = {
    torch.bool: 1,
    torch.uint8: 1,
    torch.int8: 2,
    torch.uint16: 3,
    torch.int16: 4,
    torch.uint32: 5,
    torch.int32: 6,
    torch.int64: 7,
    torch.float16: 8,
    torch.bfloat16: 9,
    torch.float32: 10,
    torch.float64: 11,
}
"""The core's numbers of the types that it converts."""
COPIED = 0
"""The core's number of the type of rows that are copied as they are."""
SIGNED, UNSIGNED, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
"""DLPack's codes for kinds of numbers."""
DLPACK_CODES = {
    torch.bool: BOOL,
    torch.bfloat16: BFLOAT,
    **dict.fromkeys([torch.int8, torch.int16, torch.int32, torch.int64], SIGNED),
    **dict.fromkeys([torch.uint8, torch.uint16, torch.uint32, torch.uint64], UNSIGNED),
    **dict.fromkeys([torch.float16, torch.float32, torch.float64], FLOAT),
    **dict.fromkeys([torch.complex64, torch.complex128], COMPLEX),
}
"""Dtype of the tensors that the core delivers -> DLPack's code."""
NO_NUMBERS = np.empty(0, np.float32)


class Conversion(NamedTuple):
    """The conversion of a stored row's items to the items of a delivered row."""

    source: torch.dtype
    """Dtype of the stored items, one of SOURCE_TYPES."""
    target: torch.dtype
    """Dtype of the delivered items, one of SOURCE_TYPES."""
    channels: int
    pixels: int
    """Number of items in each channel."""
    is_last: bool = False
    """True if the channels are the last dimension of a stored row; False: the first."""
    becomes_last: bool = False
    """True if the channels are the last dimension of a delivered row; False: the first."""
    factor: np.ndarray = NO_NUMBERS
    """float32 numbers by which items are multiplied, one for all channels or one for each; none:
    integers keep their values."""
    offset: np.ndarray = NO_NUMBERS
    """The numbers to add, as many as in `factor`."""


# A named tuple is made twice as fast as a frozen dataclass, and Python's engine makes one for each
# batch.
class NativeRows(NamedTuple):
    """Rows in memory, as the native core's `Column` takes them."""

    memory: np.ndarray
    """C-contiguous memory that holds all rows."""
    num_rows: int
    spec: SampleSpec
    """Dtype and shape of the delivered samples."""
    source_nbytes: int
    """Bytes of a stored row."""
    stride: int
    """Bytes from the start of one row to the start of the next, or from one of the `positions` to
    the next. Rows may overlap."""
    begin: int = 0
    """The byte of `memory` at which row 0 begins, or position 0."""
    positions: int = 0
    """Number of places at which rows may begin; each row begins at a random one, which depends on
    its number and `seed`. 0: one row begins after the other."""
    seed: int = 0
    """A number of 64 bits."""
    conversion: Conversion | None = None
    """The conversion of each row; None: the bytes are copied."""
    file: MappedFile | None = None
    """The file that the memory is mapped from; None for rows that no file holds."""

    def open(self, core: Any) -> Any:
        """The core's `Column` of these rows; raises ValueError if a row ends behind the memory.

        core: the module of the native core.
        """
        return core.Column(
            rows=self.memory,
            num_rows=self.num_rows,
            stride=self.stride,
            nbytes=(self.source_nbytes, self.spec.nbytes),
            begin=self.begin,
            positions=self.positions,
            seed=self.seed,
            **_conversion_arguments(self.conversion),
            dtype=(DLPACK_CODES[self.spec.dtype], 8 * self.spec.dtype.itemsize),
            shape=tuple(self.spec.shape),
            strides=_strides(self.spec),
            file=None if self.file is None else self.file.native,
        )


def _conversion_arguments(conversion: Conversion | None) -> dict[str, Any]:
    """The arguments of the core's `Column` that describe a conversion."""
    if conversion is None:
        return {
            "types": (COPIED, COPIED),
            "layout": (0, 0, 0, 0, 0),
            "factor": b"",
            "offset": b"",
        }
    return {
        "types": (SOURCE_TYPES[conversion.source], SOURCE_TYPES[conversion.target]),
        "layout": (
            conversion.channels,
            conversion.pixels,
            int(conversion.is_last),
            int(conversion.becomes_last),
            len(conversion.factor),
        ),
        "factor": conversion.factor,
        "offset": conversion.offset,
    }


@runtime_checkable
class NativeColumn(Protocol):
    """A column that may describe its rows for the native core."""

    def native_rows(self) -> NativeRows | None:
        """The rows for the native core; None if only Python can make them."""
        ...


def open_column(column: Any) -> Any | None:
    """The core's object for a column; None without the core, or if it can't make the rows."""
    core = load_core()
    if core is None or not isinstance(column, NativeColumn):
        return None
    rows = column.native_rows()
    return None if rows is None else rows.open(core)


def fill_rows(column: Any, indices: np.ndarray, out: np.ndarray) -> bool:
    """Write the column's rows at int64 or int32 `indices` to `out`; False if the core can't.

    The calling thread does it, without the interpreter's lock. Raises IndexError for an index that
    is out of bounds, before any row is read.
    """
    native = open_column(column)
    # The core writes rows one after the other.
    if native is None or not out.flags.c_contiguous:
        return False
    gather_into([native], indices, [out])
    return True


def gather_into(
    columns: Sequence[Any], indices: np.ndarray, outs: Sequence[np.ndarray], num_threads: int = 1
) -> None:
    """Write rows of columns, which `open_column` has opened, to contiguous arrays of their bytes.

    `num_threads` threads, one of which is the caller, share the work, without the interpreter's
    lock. Raises IndexError for an index that is out of bounds, before any row is read.
    """
    core = load_core()
    assert core is not None
    core.gather_into(tuple(columns), np.ascontiguousarray(indices), tuple(outs), num_threads)


def has_native_form(memory: np.ndarray, spec: SampleSpec) -> bool:
    """True if the core can deliver samples of this dtype and shape from this memory.

    It delivers types that DLPack has, from contiguous memory.
    """
    # The core has room for 16 dimensions, and the batch itself takes one of them.
    return spec.dtype in DLPACK_CODES and memory.flags.c_contiguous and len(spec.shape) <= 15


def _strides(spec: SampleSpec) -> tuple[int, ...]:
    """The strides of a sample, in items."""
    if spec.channels_last:
        channels, _, width = spec.shape
        return 1, width * channels, channels
    strides = []
    step = 1
    for size in reversed(spec.shape):
        strides.append(step)
        step *= max(1, size)
    return tuple(reversed(strides))
