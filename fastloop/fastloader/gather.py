"""Rows of a source into a buffer, and the batches that they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastloop.fastloader.buffers import Pool
from fastloop.fastloader.indices import Block
from fastloop.fastloader.leaves import Leaf, Tree

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def gatherer(
    leaves: Sequence[Leaf],
    pool: Pool,
    put_together: Callable[[Sequence[Any]], Tree] | None,
    transform: Callable[[Tree], Tree] | None,
) -> Callable[[Block], Sequence[Tree]]:
    """A function from a block to its batches, which share the memory of a buffer.

    put_together: None where a batch is a tensor.
    """
    # A row of one word is taken as such: as bytes it would be copied by a call for each.
    flat = [_words(leaf.rows) for leaf in leaves]

    def gather(block: Block) -> Sequence[Tree]:
        rows, buffer = len(block.indices), pool.take()
        for source, array in zip(flat, buffer.arrays, strict=True):
            # clip: the default would write every batch to a copy of its own first
            np.take(source, block.indices, axis=0, out=_words(array[:rows]), mode="clip")
        lent = zip(leaves, buffer.lent(rows), strict=True)
        parts = [leaf.seen(one).split(block.sizes) for leaf, one in lent]
        if put_together is None:
            batches: Sequence[Tree] = parts[0]
        else:
            batches = [put_together(one) for one in zip(*parts, strict=True)]
        return batches if transform is None else [transform(batch) for batch in batches]

    return gather


def _words(rows: np.ndarray) -> np.ndarray:
    word = WORDS.get(rows.shape[1])
    return rows if word is None else rows.view(word)[:, 0]
