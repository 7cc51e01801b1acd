"""Columns: their protocols, the dtype and shape of their samples, and a list of columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch.utils import _pytree as pytree

Tree = Any
"""A nested structure of tuples, lists and dicts, as torch's pytree reads it, or a single leaf."""


@dataclass(frozen=True)
class SampleSpec:
    """Dtype, shape and memory layout of a column's samples as they are delivered."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    """Shape of one sample, without the batch."""
    channels_last: bool = False
    """True: samples of shape (channels, height, width) are stored as (height, width, channels)."""

    @property
    def nbytes(self) -> int:
        """Bytes of one sample."""
        return self.dtype.itemsize * math.prod(self.shape)

    def view(self, rows: torch.Tensor) -> torch.Tensor:
        """View (n, nbytes) uint8 rows as a tensor of shape (n, *shape) and dtype `dtype`."""
        if not self.nbytes:
            return torch.empty((len(rows), *self.shape), dtype=self.dtype, device="cpu")
        items = rows.view(self.dtype)
        if not self.channels_last:
            return items.view(len(rows), *self.shape)
        channels, height, width = self.shape
        return items.view(len(rows), height, width, channels).permute(0, 3, 1, 2)

    def view_tensor(self, rows: np.ndarray) -> torch.Tensor:
        """View a (n, nbytes) uint8 array of rows as such a tensor, which shares its memory."""
        return self.view(torch.from_numpy(rows))


@runtime_checkable
class Column(Protocol):
    """A leaf of a source that writes its samples to memory when they are asked for.

    If making a sample takes longer than copying one, a column has the attribute `slow = True`. Each
    batch of the column is then divided among all threads.
    """

    @property
    def spec(self) -> SampleSpec:
        """Dtype and shape of the delivered samples."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the samples at `indices` to `out`; several threads call this method concurrently.

        indices: int64, already checked to be within bounds.
        out: (len(indices), spec.nbytes) uint8; `spec.view_tensor(out)` views it as a tensor. The
        memory of `out` is reused, so keep no reference to it.
        """
        ...


@runtime_checkable
class RandomColumn(Protocol):
    """A column of samples that draw random numbers."""

    def with_seed(self, seed: int) -> Column:
        """The column of one epoch, with draws that follow from the epoch's seed of 63 bits."""
        ...


class ColumnList(list):
    """A list of columns: a batch of FastLoader is a list with a tensor of each column.

    FastLoader reads any other list as a list of samples, as DataLoader does. `open_store` returns a
    ColumnList for the store of a Dataset of samples that are tuples or lists.
    """


def mark_columns(tree: Any) -> Any:
    """The tree of columns for FastLoader, as a ColumnList if the tree itself is a list."""
    return ColumnList(tree) if type(tree) is list else tree


# Registered as a node, a ColumnList stays a ColumnList in the result of torch's tree_map.
pytree.register_pytree_node(
    ColumnList,
    lambda columns: (list(columns), None),
    lambda columns, _: ColumnList(columns),
    serialized_type_name="fastloop.fastloader.columns.column.ColumnList",
)
