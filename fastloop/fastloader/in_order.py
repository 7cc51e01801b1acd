"""A source whose rows are read one after the other: what lies in memory is not copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastloop.fastloader.buffers import Pool
from fastloop.fastloader.columns import Tree
from fastloop.fastloader.indices import Block
from fastloop.fastloader.rows import Rows
from fastloop.fastloader.source import Source, apart


@dataclass(frozen=True)
class InOrder:
    """Batches of blocks of consecutive rows.

    Nothing is lent where nothing is copied: a view of the source's memory holds that, and is as
    safe as the source, which its owner alone writes to. To autograd it is a tensor of its own.
    """

    lying: Sequence[torch.Tensor | None]
    """Of each column its own memory; None: its rows are filled into a buffer."""
    filled: Source
    """Those columns."""
    whole: Source
    """All of them."""

    def __len__(self) -> int:
        return len(self.whole)

    @property
    def together(self) -> bool:
        """As the source."""
        return self.whole.together

    @property
    def row_nbytes(self) -> Sequence[int]:
        """Of what is filled."""
        return self.filled.row_nbytes

    def batches(self, block: Block, pool: Pool | None) -> Sequence[Tree]:
        """Those of a block; pool: None where no column is filled."""
        start, rows = int(block.indices[0]), len(block.indices)
        made = iter(() if pool is None else self.filled.parts(block, pool))
        parts = [
            next(made) if memory is None else apart(memory[start : start + rows].data, block)
            for memory in self.lying
        ]
        return self.whole.trees(parts)


def in_order(source: Source) -> InOrder | None:
    """The source for an epoch in its own order; None where every column has to be filled."""
    lying = [column.memory if isinstance(column, Rows) else None for column in source.columns]
    if all(memory is None for memory in lying):
        return None
    pairs = zip(source.columns, lying, strict=True)
    filled = [column for column, memory in pairs if memory is None]
    return InOrder(lying, Source(filled, None), source)
