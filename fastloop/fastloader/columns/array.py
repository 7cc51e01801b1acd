"""Columns of tensors and arrays, in memory or in a mapped file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.mapped_file import FileRegion, MappedFile, find_file, region_of
from fastloop.fastloader.columns.native_rows import NativeRows, fill_rows, has_native_form


@dataclass(frozen=True)
class ArrayColumn:
    """A column of the rows of a tensor or an array."""

    flat: np.ndarray
    """(num_samples, row_nbytes) uint8, a view of the memory of the source or of its copy."""
    spec: SampleSpec
    """Dtype and shape of a row."""
    memory: torch.Tensor | None = None
    """The source itself if batches may be views of it, otherwise None; see `_viewable_memory`."""
    region: FileRegion | None = None
    """The place of the rows in a mapped file; None if `region_of` finds none, and for writable
    maps."""
    file: MappedFile | None = None
    """The file from which the rows are mapped, writable or not; None for rows in memory."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.flat)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Copy the rows at `indices` to `out`, see `Column.fill`.

        Raises OSError if a mapped file has become shorter.
        """
        if not fill_rows(self, indices, out):
            if self.file is not None:
                self.file.check()
            # The indices are within bounds, so mode="clip" changes none of them. The default mode
            # would write every batch to a temporary copy first.
            self.flat.take(indices, axis=0, out=out, mode="clip")

    def native_rows(self) -> NativeRows | None:
        """The rows for the native core; None if it can't copy them."""
        if not has_native_form(self.flat, self.spec):
            return None
        nbytes = self.spec.nbytes
        return NativeRows(
            memory=self.flat,
            num_rows=len(self.flat),
            spec=self.spec,
            source_nbytes=nbytes,
            stride=nbytes,
            file=self.file,
        )

    def __reduce__(self) -> tuple[Callable[..., ArrayColumn], tuple[Any, ...]]:
        """Pickle the place of mapped rows in their file; pickle all other rows whole."""
        if self.region is None:
            return ArrayColumn, (self.flat, self.spec)
        region = replace(self.region, dtype=self.flat.dtype, shape=self.flat.shape)
        return _reopen, (region, self.spec)


def array_column(source: torch.Tensor | np.ndarray) -> ArrayColumn:
    """Make a column of the source's rows, without a copy if the source is contiguous.

    Raises ValueError for a source without dimensions, a source that is not on the CPU or requires
    grad, and a sparse or quantized tensor. Raises TypeError for an array of a dtype that torch
    lacks.
    """
    tensor = _as_tensor(source)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        kind = f"{tensor.dtype} and {tensor.layout}"
        raise ValueError(f"a source of {kind}: pass its to_dense() or dequantize()")
    if tensor.dim() == 0 or tensor.device.type != "cpu":
        got = f"got shape {tuple(tensor.shape)} on {tensor.device}"
        raise ValueError(f"a source has samples in its first dimension, on the CPU: {got}")
    if tensor.requires_grad:
        raise ValueError("a source that requires grad: batches have no gradient, pass its detach()")
    memory = _viewable_memory(source, tensor)
    # torch conjugates and negates lazily: the bytes in memory may not be those of the values yet.
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    spec = SampleSpec(tensor.dtype, tuple(tensor.shape[1:]))
    if not tensor.nbytes:
        return ArrayColumn(np.zeros((len(tensor), spec.nbytes), np.uint8), spec, memory)
    width = math.prod(spec.shape)
    # view() could fail, because a contiguous tensor may have any stride in a dimension of size 1.
    flat = tensor.as_strided((len(tensor), width), (width, 1))
    region = region_of(source)
    if region is not None and region.is_writable:
        region = None
    # If the rows had to be copied to be contiguous, the copy is not mapped from a file.
    is_map = isinstance(source, np.ndarray) and source.ctypes.data == flat.data_ptr()
    file = find_file(source) if is_map else None
    return ArrayColumn(flat.view(torch.uint8).numpy(), spec, memory, region, file)


def _reopen(region: FileRegion, spec: SampleSpec) -> ArrayColumn:
    """The unpickled column, with its rows mapped again."""
    flat = region.open()
    return ArrayColumn(flat, spec, region=region_of(flat), file=find_file(flat))


def _as_tensor(source: torch.Tensor | np.ndarray) -> torch.Tensor:
    """The source as a tensor, which shares the memory of an array without negative strides."""
    if isinstance(source, torch.Tensor):
        return source
    # A reversed view of numpy has a negative stride, which torch does not support.
    if any(step < 0 for step in source.strides):
        source = np.ascontiguousarray(source)
    # torch warns of read-only arrays, because writing to the resulting tensor is undefined. Nothing
    # here writes to the source.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        return torch.from_numpy(source)


def _viewable_memory(
    source: torch.Tensor | np.ndarray, tensor: torch.Tensor
) -> torch.Tensor | None:
    """The source as a plain tensor if batches may be views of it, otherwise None.

    None for read-only arrays, because batches may be written to. None for a np.memmap, because a
    view of a mapped file is read from disk only when the batch is used, and not ahead of that.
    """
    if isinstance(source, np.memmap):
        return None
    if isinstance(source, np.ndarray) and not source.flags.writeable:
        return None
    # Rows of an expanded tensor share memory, so writing to one batch would change other batches.
    repeated = (
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return None if any(repeated) else tensor.detach().as_subclass(torch.Tensor)
