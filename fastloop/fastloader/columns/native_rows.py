"""Columns for the native core: how they describe their rows to it, and how it fills arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

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
"""The core's numbers of the types that it converts; 0 stands for bytes that it copies."""
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


@runtime_checkable
class NativeColumn(Protocol):
    """A column that may describe its rows for the native core."""

    def native_rows(self) -> dict[str, Any] | None:
        """The arguments of the core's `Column`; None if only Python can make these rows."""
        ...


def open_column(column: Any) -> Any | None:
    """The core's object for a column; None without the core, or if it can't make the rows."""
    core = load_core()
    if core is None or not isinstance(column, NativeColumn):
        return None
    arguments = column.native_rows()
    return None if arguments is None else core.Column(**arguments)


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


def describe_rows(
    memory: np.ndarray,
    num_rows: int,
    spec: SampleSpec,
    source_nbytes: int | None = None,
    *,
    file: MappedFile | None,
) -> dict[str, Any] | None:
    """The arguments of a core's `Column` that copies rows of contiguous memory.

    file: the file that the memory is mapped from, if any.

    Returns None for types that DLPack lacks, and for memory that is not contiguous.
    """
    # The core has room for 16 dimensions, and the batch itself takes one of them.
    if spec.dtype not in DLPACK_CODES or not memory.flags.c_contiguous or len(spec.shape) > 15:
        return None
    source_nbytes = spec.nbytes if source_nbytes is None else source_nbytes
    return {
        "rows": memory,
        "num_rows": num_rows,
        "stride": source_nbytes,
        "nbytes": (source_nbytes, spec.nbytes),
        "begin": 0,
        "positions": 0,
        "seed": 0,
        "types": (0, 0),
        "layout": (0, 0, 0, 0, 0),
        "factor": b"",
        "offset": b"",
        "dtype": (DLPACK_CODES[spec.dtype], 8 * spec.dtype.itemsize),
        "shape": tuple(spec.shape),
        "strides": _strides(spec),
        "file": None if file is None else file.native,
    }


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
