"""The protocol of columns, and the dtype and shape of their samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

Tree = Any
WORDS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True)
class SampleSpec:
    """Dtype, shape and memory layout of a column's samples as they are delivered."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    channels_last: bool = False
    """Samples of shape (channels, height, width) are stored as (height, width, channels)."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return self.dtype.itemsize * math.prod(self.shape)

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        """numpy's dtype of this name; an integer of equal size where it has none (bfloat16)."""
        try:
            return torch.empty(0, dtype=self.dtype, device="cpu").numpy().dtype
        except TypeError:  # numpy's own list of names changes when ml_dtypes is imported
            return np.dtype(WORDS[self.dtype.itemsize])

    def view_array(self, rows: np.ndarray) -> np.ndarray:
        """View (n, nbytes) uint8 rows as an array of shape (n, *shape) and dtype `numpy_dtype`."""
        if not rows.shape[1]:
            return np.empty((len(rows), *self.shape), self.numpy_dtype)
        if self.channels_last:
            channels, height, width = self.shape
            shape = len(rows), height, width, channels
            return rows.view(self.numpy_dtype).reshape(shape).transpose(0, 3, 1, 2)
        return rows.view(self.numpy_dtype).reshape(len(rows), *self.shape)

    def wrap_array(self, array: np.ndarray) -> torch.Tensor:
        """Wrap the result of `view_array` as a tensor whose storage holds that very array."""
        tensor = torch.from_numpy(array)
        return tensor if tensor.dtype == self.dtype else tensor.view(self.dtype)

    def view_tensor(self, rows: np.ndarray) -> torch.Tensor:
        """View (n, nbytes) uint8 rows as a tensor of shape (n, *shape) and dtype `dtype`."""
        return self.wrap_array(self.view_array(rows))


@runtime_checkable
class Column(Protocol):
    """A leaf of a source that computes its samples on demand, unlike a tensor or an array.

    A column with `slow = True` takes longer to make a sample than to copy one: its batches are made
    one at a time, and even small batches are divided among all threads.
    """

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of the delivered samples."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the samples at `indices` to `out`. Several threads call this concurrently.

        indices: int64, already checked to be within bounds.
        out: (len(indices), spec.nbytes) uint8; `spec.view_tensor(out)` views it as a tensor. Its
        memory is reused: keep no reference to it.
        """
        ...
