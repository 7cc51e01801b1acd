"""A tree of columns: what FastLoader's batches are made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.buffers import Pool
from fastloop.fastloader.columns import Column, Tree
from fastloop.fastloader.indices import Block
from fastloop.fastloader.rows import rows_of


class Lent(NamedTuple):
    """Of each column the memory of a block, as it is written and as it is delivered."""

    rows: Sequence[np.ndarray]
    """(rows, nbytes) uint8; to be written to only as long as the tensors are held."""
    seen: Sequence[torch.Tensor]


@dataclass(frozen=True)
class Source:
    """Columns of one length, and the tree that a batch of them is."""

    columns: Sequence[Column]
    put_together: Callable[[Sequence[Any]], Tree] | None
    """None where a batch is a tensor."""
    placed: Callable[[torch.Tensor], torch.Tensor] | None = None
    """What is done with a column's rows of a whole block."""

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.columns[0])

    @property
    def together(self) -> bool:
        """Small batches are made several at a time, but for samples that cost more than a copy."""
        return not any(getattr(column, "slow", False) for column in self.columns)

    @property
    def row_nbytes(self) -> list[int]:
        """Bytes of a delivered sample in each column."""
        return [column.kind.nbytes for column in self.columns]

    def batches(self, block: Block, pool: Pool) -> Sequence[Tree]:
        """Those of a block; they share the memory of a buffer, or of what `placed` makes of it."""
        return self.trees(self.parts(block, pool))

    def parts(self, block: Block, pool: Pool) -> list[Sequence[torch.Tensor]]:
        """Of each column its part of every batch."""
        lent = self.lent(block, pool)
        self.fill(block.indices, lent.rows)
        return self.split(lent.seen, block)

    def lent(self, block: Block, pool: Pool) -> Lent:
        """Memory of each column, the block's own until the last view of its tensor is gone."""
        count, pairs = len(block.indices), zip(pool.homes, self.columns, strict=True)
        lent = [home.lent(count, column.kind) for home, column in pairs]
        return Lent([rows for rows, _ in lent], [seen for _, seen in lent])

    def fill(self, indices: np.ndarray, into: Sequence[np.ndarray]) -> None:
        """Write these rows of every column there."""
        for column, rows in zip(self.columns, into, strict=True):
            column.fill(indices, rows)

    def split(self, seen: Sequence[torch.Tensor], block: Block) -> list[Sequence[torch.Tensor]]:
        """Each column's part of every batch."""
        placed = seen if self.placed is None else [self.placed(one) for one in seen]
        return [apart(one, block) for one in placed]

    def trees(self, parts: Sequence[Sequence[torch.Tensor]]) -> Sequence[Tree]:
        """Batches of such parts."""
        if self.put_together is None:
            return parts[0]
        return [self.put_together(one) for one in zip(*parts, strict=True)]


def apart(rows: torch.Tensor, block: Block) -> Sequence[torch.Tensor]:
    """The same memory as batches that autograd takes for tensors of their own.

    Views of one tensor, as split() makes them, share its version: writing to one batch would spoil
    the backward pass of another one. These share no row, either, so that both may be done.
    """
    if not isinstance(block.sizes, int):
        return rows.unsafe_split_with_sizes(block.sizes)
    return (rows,) if len(block.indices) <= block.sizes else rows.unsafe_split(block.sizes)


def source_of(tree: Tree) -> Source:
    """A tree of tensors, arrays and columns as a source.

    Raises ValueError for one without any, with something else in it, or with other lengths.
    """
    found, structure = pytree.tree_flatten(tree)
    columns = [_column(one) for one in found]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        told = sorted(lengths) or "no tensors or arrays"
        raise ValueError(f"a source is a tree of tensors or arrays of one length, got {told}")
    if type(tree) is tuple and len(tree) == len(found):
        return Source(columns, tuple)
    if structure.is_leaf():
        return Source(columns, None)
    return Source(columns, lambda made: pytree.tree_unflatten(made, structure))


def _column(one: Any) -> Column:
    if isinstance(one, torch.Tensor | np.ndarray):
        return rows_of(one)
    if isinstance(one, Column):
        return one
    allowed = "a source is a Dataset, or a tree (a list is one) of tensors, arrays and columns"
    raise ValueError(f"{allowed}, in which there is no {type(one).__name__}")
