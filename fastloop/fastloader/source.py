"""A tree of columns, from which FastLoader's batches are gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.batching import BatchGroup
from fastloop.fastloader.buffers import BufferPool
from fastloop.fastloader.columns.array import ArrayColumn, array_column
from fastloop.fastloader.columns.column import Column, Tree


class LeasedMemory(NamedTuple):
    """The memory of a group's rows, one array and one tensor for each column."""

    rows: Sequence[np.ndarray]
    """(rows, nbytes) uint8; may be written to only as long as the tensors are held."""
    tensors: Sequence[torch.Tensor]
    """The same memory, as it is delivered."""


@dataclass(frozen=True)
class ColumnSource:
    """Columns of one length, and the tree that their batches form."""

    columns: Sequence[Column]
    unflatten: Callable[[Sequence[Any]], Tree] | None
    """From a batch's leaves to its tree; None where a batch is a single tensor."""
    place: Callable[[torch.Tensor], torch.Tensor] | None = None
    """Applied to each column's rows of a whole group, for example a copy to a device."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.columns[0])

    @property
    def is_groupable(self) -> bool:
        """True where several small batches are made at once: no sample costs more than a copy."""
        return not any(getattr(column, "slow", False) for column in self.columns)

    @property
    def row_nbytes(self) -> list[int]:
        """Bytes of a delivered sample in each column."""
        return [column.spec.nbytes for column in self.columns]

    def batches(self, group: BatchGroup, pool: BufferPool) -> Sequence[Tree]:
        """The group's batches, in memory leased from the pool or in what `place` returns."""
        return self.assemble(self.gather(group, pool))

    def gather(self, group: BatchGroup, pool: BufferPool) -> list[Sequence[torch.Tensor]]:
        """For each column, its part of every batch."""
        memory = self.lease(group, pool)
        self.fill(group.indices, memory.rows)
        return self.split(memory.tensors, group)

    def lease(self, group: BatchGroup, pool: BufferPool) -> LeasedMemory:
        """Memory for each column's rows, reused once the last view of its tensor is gone."""
        count, pairs = len(group.indices), zip(pool.columns, self.columns, strict=True)
        leases = [buffers.lease(count, column.spec) for buffers, column in pairs]
        return LeasedMemory([rows for rows, _ in leases], [tensor for _, tensor in leases])

    def fill(self, indices: np.ndarray, out: Sequence[np.ndarray]) -> None:
        """Write the rows at `indices` of every column to its array."""
        for column, rows in zip(self.columns, out, strict=True):
            column.fill(indices, rows)

    def split(
        self, tensors: Sequence[torch.Tensor], group: BatchGroup
    ) -> list[Sequence[torch.Tensor]]:
        """Each column's part of every batch, placed."""
        place = self.place
        placed = tensors if place is None else [place(tensor) for tensor in tensors]
        return [split_batches(tensor, group) for tensor in placed]

    def assemble(self, columns: Sequence[Sequence[torch.Tensor]]) -> Sequence[Tree]:
        """Batches of each column's parts."""
        if self.unflatten is None:
            return columns[0]
        return [self.unflatten(leaves) for leaves in zip(*columns, strict=True)]


def split_batches(rows: torch.Tensor, group: BatchGroup) -> Sequence[torch.Tensor]:
    """Split a group's rows into batches that autograd treats as separate tensors.

    The views that split() makes share one version counter: writing to one batch would invalidate
    the backward pass of another. These batches have no row in common, so unsafe_split is right.
    """
    if not isinstance(group.sizes, int):
        return rows.unsafe_split_with_sizes(group.sizes)
    return (rows,) if len(group.indices) <= group.sizes else rows.unsafe_split(group.sizes)


def column_source(tree: Tree) -> ColumnSource:
    """Make a source of a tree of tensors, arrays and columns.

    Raises ValueError for a tree without leaves, with leaves of other types or of different lengths.
    """
    leaves, structure = pytree.tree_flatten(tree)
    columns = [_as_column(leaf) for leaf in leaves]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        actual = sorted(lengths) or "no tensors or arrays"
        raise ValueError(f"a source is a tree of tensors or arrays of one length, got {actual}")
    if type(tree) is tuple and len(tree) == len(leaves):
        return ColumnSource(columns, tuple)
    if structure.is_leaf():
        return ColumnSource(columns, None)
    return ColumnSource(columns, lambda leaves: pytree.tree_unflatten(leaves, structure))


def _as_column(leaf: Any) -> Column:
    if isinstance(leaf, torch.Tensor | np.ndarray):
        return array_column(leaf)
    if isinstance(leaf, Column):
        return leaf
    allowed = "a source is a Dataset, or a tree (a list is one) of tensors, arrays and columns"
    raise ValueError(f"{allowed}; a leaf of type {type(leaf).__name__} is none of these")


@dataclass(frozen=True)
class SequentialSource:
    """Batches of consecutive rows, which are views of the source's memory where possible.

    A view holds the source's memory and is as safe as the source, to which only its owner writes.
    To autograd each batch is a separate tensor.
    """

    memories: Sequence[torch.Tensor | None]
    """Each column's memory; None where its rows are gathered into a buffer."""
    gathered: ColumnSource
    """The columns whose rows are gathered."""
    source: ColumnSource
    """All columns."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def is_groupable(self) -> bool:
        """As the source."""
        return self.source.is_groupable

    @property
    def row_nbytes(self) -> Sequence[int]:
        """Bytes of a sample in each gathered column."""
        return self.gathered.row_nbytes

    def batches(self, group: BatchGroup, pool: BufferPool | None) -> Sequence[Tree]:
        """The group's batches; pool: None where no column is gathered."""
        start, count = int(group.indices[0]), len(group.indices)
        gathered = iter(() if pool is None else self.gathered.gather(group, pool))
        columns = [
            next(gathered)
            if memory is None
            else split_batches(memory[start : start + count].data, group)
            for memory in self.memories
        ]
        return self.source.assemble(columns)


def sequential_source(source: ColumnSource) -> SequentialSource | None:
    """The source for an epoch in its own order; None where every column has to be gathered."""
    memories = [
        column.memory if isinstance(column, ArrayColumn) else None for column in source.columns
    ]
    if all(memory is None for memory in memories):
        return None
    pairs = zip(source.columns, memories, strict=True)
    gathered = [column for column, memory in pairs if memory is None]
    return SequentialSource(memories, ColumnSource(gathered, None), source)
