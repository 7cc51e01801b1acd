"""Columns of arrays: in one memory or mapped file, in several parts, or read by a library."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.mapped_file import FileRegion, MappedFile, find_file, region_of
from fastloop.fastloader.columns.native_rows import describe_rows, fill_rows


@dataclass(frozen=True)
class ArrayColumn:
    """The rows of a tensor or an array."""

    flat: np.ndarray
    """(num_samples, row_nbytes) uint8, a view of the source's memory."""
    spec: SampleSpec
    memory: torch.Tensor | None = None
    """The source itself, if batches may be views of it; else None, see `_viewable_memory`."""
    region: FileRegion | None = None
    """The place of the rows in a mapped file; None for rows in memory and for writable maps."""
    file: MappedFile | None = None
    """The file that the rows are mapped from, writable or not; None for rows in memory."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.flat)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Copy the rows at `indices` to `out`."""
        if not fill_rows(self, indices, out):
            if self.file is not None:
                self.file.check()
            # The indices are within bounds: nothing is clipped, but the default mode writes every
            # batch to a temporary copy first.
            self.flat.take(indices, axis=0, out=out, mode="clip")

    def native_rows(self) -> dict[str, Any] | None:
        """The arguments of the native core's column."""
        return describe_rows(self.flat, len(self.flat), self.spec, file=self.file)

    def __reduce__(self) -> tuple[Callable[..., ArrayColumn], tuple[Any, ...]]:
        """Pickle the place of the rows in a mapped file, and not its bytes."""
        if self.region is None:
            return ArrayColumn, (self.flat, self.spec)
        region = replace(self.region, dtype=self.flat.dtype, shape=self.flat.shape)
        return _reopen, (region, self.spec)


def array_column(source: torch.Tensor | np.ndarray) -> ArrayColumn:
    """Make a column of the source's rows, without a copy if the source is contiguous.

    Raises ValueError for a source without dimensions, not on the CPU, that requires grad, or that
    has its values elsewhere than in its rows.
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
    # A lazily conjugated or negated tensor has other bytes than its values.
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    spec = SampleSpec(tensor.dtype, tuple(tensor.shape[1:]))
    if not tensor.nbytes:
        return ArrayColumn(np.zeros((len(tensor), spec.nbytes), np.uint8), spec, memory)
    width = math.prod(spec.shape)
    # view() could fail: even a contiguous tensor may have any stride in a dimension of size 1.
    flat = tensor.as_strided((len(tensor), width), (width, 1))
    region = region_of(source)
    if region is not None and region.is_writable:
        region = None
    # A copy that was made to be contiguous is no longer a map.
    is_map = isinstance(source, np.ndarray) and source.ctypes.data == flat.data_ptr()
    file = find_file(source) if is_map else None
    return ArrayColumn(flat.view(torch.uint8).numpy(), spec, memory, region, file)


def _reopen(region: FileRegion, spec: SampleSpec) -> ArrayColumn:
    flat = region.open()
    return ArrayColumn(flat, spec, region=region_of(flat), file=find_file(flat))


def _as_tensor(source: torch.Tensor | np.ndarray) -> torch.Tensor:
    if isinstance(source, torch.Tensor):
        return source
    # torch has no negative strides, which a reversed view of numpy has.
    if any(step < 0 for step in source.strides):
        source = np.ascontiguousarray(source)
    # torch warns of read-only arrays, because writing to their tensors is undefined. Nothing here
    # writes to the source.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        return torch.from_numpy(source)


def _viewable_memory(
    source: torch.Tensor | np.ndarray, tensor: torch.Tensor
) -> torch.Tensor | None:
    """The source's memory if batches may be views of it, else None.

    None for read-only arrays, because batches may be written to, and for mapped files, because
    views would be read from disk when a batch is used and not ahead of that.
    """
    if isinstance(source, np.memmap):
        return None
    if isinstance(source, np.ndarray) and not source.flags.writeable:
        return None
    # Rows of an expanded tensor are one in memory: writing to a batch would change others.
    repeated = (
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return None if any(repeated) else tensor.detach().as_subclass(torch.Tensor)


@dataclass(frozen=True)
class ChunkedRows:
    """The rows of several arrays of one dtype and shape, one after the other."""

    chunks: Sequence[np.ndarray]

    def __len__(self) -> int:
        return sum(map(len, self.chunks))

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of a row."""
        return _spec(self.chunks[0])

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Copy the rows at `indices` to `out`, chunk by chunk."""
        rows = out.view(self.chunks[0].dtype).reshape(len(indices), *self.chunks[0].shape[1:])
        ends = np.cumsum([len(chunk) for chunk in self.chunks])
        numbers = np.searchsorted(ends, indices, "right")
        for number in np.unique(numbers).tolist():
            chunk, places = self.chunks[number], np.flatnonzero(numbers == number)
            rows[places] = chunk[indices[places] - (ends[number] - len(chunk))]


@dataclass(frozen=True)
class LibraryArray:
    """The rows of an array that a library reads from chunks, such as zarr's and h5py's arrays."""

    array: Any
    slow: ClassVar[bool] = True

    def __len__(self) -> int:
        return self.array.shape[0]

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of a row."""
        return _spec(self.array)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Read the rows at `indices`, each once, in the array's order."""
        shape = (len(indices), *self.array.shape[1:])
        # h5py wants ascending indices without repetition, and a chunk is read once.
        needed, places = np.unique(indices, return_inverse=True)
        out.view(self.array.dtype).reshape(shape)[:] = self._read(needed)[places]

    def _read(self, indices: np.ndarray) -> np.ndarray:
        """Rows at ascending indices."""
        if not len(indices):
            return np.empty((0, *self.array.shape[1:]), self.array.dtype)
        first, last = int(indices[0]), int(indices[-1])
        if last - first + 1 == len(indices):
            return self.array[first : last + 1]
        # zarr's [] would take an array of indices for coordinates of single items.
        return getattr(self.array, "oindex", self.array)[indices]


def is_library_array(leaf: Any) -> bool:
    """True for an array of numbers in chunks with numpy's dtype; the library is not imported."""
    if isinstance(leaf, torch.Tensor):
        return False  # a nested tensor raises RuntimeError if it is asked for its shape
    attributes = "shape", "dtype", "chunks", "__getitem__"
    return all(hasattr(leaf, name) for name in attributes) and isinstance(leaf.dtype, np.dtype)


def library_array(array: Any) -> LibraryArray:
    """The column; raises ValueError for an array without rows, or not of numbers or booleans."""
    if not array.shape or array.dtype.kind not in "buifc":
        actual = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"an array has rows of numbers or booleans, got {actual}")
    return LibraryArray(array)


def _spec(array: Any) -> SampleSpec:
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return SampleSpec(dtype, tuple(array.shape[1:]))
