"""The class `ColumnSource`: the columns of a user's tree, from which batches are gathered.

`column_source` makes a ColumnSource of a tree. A column has the samples of one leaf, as rows. It
gathers rows by the native core if possible, and by numpy and torch otherwise. The thread that calls
a ColumnSource does the work. A column is slow if a row takes longer to make than to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.batch_memory import BatchMemory
from fastloop.fastloader.columns.array import ArrayColumn, array_column
from fastloop.fastloader.columns.chunked import is_library_array, library_column
from fastloop.fastloader.columns.column import Column, RandomColumn, Tree


@dataclass(frozen=True)
class RowsToFill:
    """The rows of each column for some indices, in memory that is yet to be filled."""

    columns: Sequence[Column]
    indices: np.ndarray
    """int64 (num_rows,)."""
    memories: Sequence[torch.Tensor | None]
    """For each column (num_rows, row_nbytes) uint8, the memory to fill; None: the rows are a view
    of the source's memory, and need not be filled."""
    tensors: Sequence[torch.Tensor]
    """For each column (num_rows, *shape), the same rows with the column's dtype and shape."""

    def fill_fast(self) -> None:
        """Fill all rows of the fast columns."""
        for column, memory in self._pairs(slow=False):
            column.fill(self.indices, memory)

    def fill_slow(self, part: slice = slice(None)) -> None:
        """Fill a part of the rows of the slow columns.

        part: the places of these rows in `indices`; several threads can fill different parts.
        """
        for column, memory in self._pairs(slow=True):
            column.fill(self.indices[part], memory[part])

    def _pairs(self, *, slow: bool) -> Iterator[tuple[Column, np.ndarray]]:
        """The slow or the fast columns, each with the memory of its rows."""
        for column, memory in zip(self.columns, self.memories, strict=True):
            if memory is not None and _is_slow(column) == slow:
                yield column, memory.numpy()


@dataclass(frozen=True)
class ColumnSource:
    """Columns of one length, and the tree that their batches form."""

    columns: Sequence[Column]
    unflatten: Callable[[Sequence[torch.Tensor]], Tree] | None
    """(a batch's leaves) -> its tree; None if a batch is a single tensor."""
    is_pinned: bool = False
    """True if batches are made in pinned memory."""
    shows_views: bool = False
    """True if batches may be views of the source's memory; the indices are then consecutive.
    Writing to a view writes to the source."""
    memory: BatchMemory = field(default_factory=BatchMemory)
    """The memory for batches that are not views."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.columns[0])

    @property
    def is_slow(self) -> bool:
        """True if a column is slow."""
        return any(map(_is_slow, self.columns))

    @property
    def row_nbytes(self) -> int:
        """Bytes of a delivered sample."""
        return sum(column.spec.nbytes for column in self.columns)

    def batches(self, group: Sequence[np.ndarray]) -> list[Tree]:
        """The batches of a group. group: the int64 indices of each batch."""
        return self.split(self.gather(group), group)

    def gather(self, group: Sequence[np.ndarray]) -> Sequence[torch.Tensor]:
        """For each column, the rows of all batches of a group in one tensor."""
        # Inference mode is off, as in a new thread. So a batch does not depend on whether the
        # consumer or another thread makes it.
        with torch.inference_mode(False):
            rows = self.allocate(group)
            rows.fill_fast()
            rows.fill_slow()
            return rows.tensors

    def allocate(self, group: Sequence[np.ndarray]) -> RowsToFill:
        """Memory for the rows of all batches of a group; rows that are views have no memory."""
        indices = group[0] if len(group) == 1 else np.concatenate(group)
        memories, tensors = [], []
        for column in self.columns:
            if self.shows_views and isinstance(column, ArrayColumn) and column.memory is not None:
                start = int(indices[0])
                memories.append(None)
                # .data returns a tensor with a version counter of its own, see split().
                tensors.append(column.memory[start : start + len(indices)].data)
                continue
            rows = self.memory.empty_rows(len(indices), column.spec.nbytes, self.is_pinned)
            memories.append(rows)
            tensors.append(column.spec.view(rows))
        return RowsToFill(self.columns, indices, memories, tensors)

    def split(self, rows: Sequence[torch.Tensor], group: Sequence[np.ndarray]) -> list[Tree]:
        """The batches of a group. rows: for each column, the rows of all these batches."""
        # The views that torch.split makes share one version counter, so writing to one batch would
        # invalidate the backward pass of another. unsafe_split gives each view its own counter,
        # which is right because batches have no row in common.
        sizes = [len(indices) for indices in group]
        parts = [leaf.unsafe_split_with_sizes(sizes) if sizes[1:] else [leaf] for leaf in rows]
        if self.unflatten is None:
            return list(parts[0])
        return [self.unflatten(leaves) for leaves in zip(*parts, strict=True)]


def _is_slow(column: Column) -> bool:
    """True if a row of the column takes longer to make than to copy."""
    return bool(getattr(column, "slow", False))


def seed_columns(source: ColumnSource, seed: int) -> ColumnSource:
    """The source for one epoch, in which random columns draw with this seed."""
    columns = [
        column.with_seed(seed) if isinstance(column, RandomColumn) else column
        for column in source.columns
    ]
    return replace(source, columns=columns)


def column_source(tree: Tree) -> ColumnSource:
    """Make a source of a tree of tensors, arrays and columns.

    Raises ValueError for a tree without leaves, with leaves of other types or of different lengths,
    and for an array in the other byte order. Raises the errors of `array_column`.
    """
    leaves, structure = pytree.tree_flatten_with_path(tree)
    for path, leaf in leaves:
        _check_byte_order(leaf, path)
    columns = [_as_column(leaf) for _, leaf in leaves]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        actual = sorted(lengths) or "no tensors or arrays"
        raise ValueError(f"a source is a tree of tensors or arrays of one length, got {actual}")
    # With None, for a single leaf, and with `tuple`, for a flat tuple, the native core calls no
    # function of Python for each batch, see stream_batches.c.
    if structure.is_leaf():
        return ColumnSource(columns, None)
    if structure == pytree.tree_structure((0,) * len(columns)):
        return ColumnSource(columns, tuple)
    return ColumnSource(columns, lambda leaves: pytree.tree_unflatten(leaves, structure))


def _check_byte_order(leaf: Any, path: tuple[Any, ...]) -> None:
    """Raise ValueError for an array in the other byte order, which torch can't read.

    path: the place of the leaf in its tree, for the message.
    """
    if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
        problem = f"dataset{pytree.keystr(path)} has the byte order of dtype {leaf.dtype.str!r}"
        raise ValueError(f"{problem}: astype({leaf.dtype.name!r}) has this machine's")


def _as_column(leaf: Any) -> Column:
    """The leaf of a tree as a column; raises ValueError for one that has no rows."""
    if isinstance(leaf, torch.Tensor | np.ndarray):
        return array_column(leaf)
    if isinstance(leaf, Column):
        return leaf
    if is_library_array(leaf):
        return library_column(leaf)
    allowed = "a source is a Dataset (a list is one), or a tree of tensors, arrays and columns"
    problem = f"{allowed}; a leaf of type {type(leaf).__name__} is none of these"
    raise ValueError(f"{problem}{_advise(leaf)}")


def _advise(leaf: Any) -> str:
    """The end of the message about a leaf that is no column: advice, or an empty string."""
    if hasattr(leaf, "__getitem__") and hasattr(leaf, "__len__"):
        return ": pass one Dataset, or several by torch's ConcatDataset or StackDataset"
    if hasattr(leaf, "__iter__"):
        return ": a class derived from torch's IterableDataset may return it in __iter__"
    if hasattr(leaf, "__getitem__"):
        return ": it has no __len__, which is needed also with a sampler"
    return ""
