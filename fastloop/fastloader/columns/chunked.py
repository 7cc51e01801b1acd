"""Columns of rows that lie in chunks: several arrays, or an array that a library reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.fastloader.columns.column import SampleSpec


@dataclass(frozen=True)
class ChunkedColumn:
    """The rows of several arrays of one dtype and shape, one after the other."""

    chunks: Sequence[np.ndarray]

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def _ends(self) -> np.ndarray:
        """The number of rows up to the end of each chunk."""
        return np.cumsum([len(chunk) for chunk in self.chunks])

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of a row."""
        return _spec(self.chunks[0])

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Copy the rows at `indices` to `out`, chunk by chunk."""
        rows = out.view(self.chunks[0].dtype).reshape(len(indices), *self.chunks[0].shape[1:])
        numbers = np.searchsorted(self._ends, indices, "right")
        for number in np.unique(numbers).tolist():
            chunk = self.chunks[number]
            places = np.flatnonzero(numbers == number)
            rows[places] = chunk[indices[places] - (self._ends[number] - len(chunk))]


@dataclass(frozen=True)
class LibraryColumn:
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


def library_column(array: Any) -> LibraryColumn:
    """The column; raises ValueError for an array without rows, or not of numbers or booleans."""
    if not array.shape or array.dtype.kind not in "buifc":
        actual = f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"an array has rows of numbers or booleans, got {actual}")
    return LibraryColumn(array)


def _spec(array: Any) -> SampleSpec:
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    return SampleSpec(dtype, tuple(array.shape[1:]))
