"""Large batches, each made in parts by several threads at once.

A batch of 38 MB that one core gathers comes twice as late as one that two cores gather, the first
one of an epoch above all, and the core that has the last one leaves the others without work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fastloop.fastloader.buffers import Pool
from fastloop.fastloader.columns import Tree
from fastloop.fastloader.indices import Block
from fastloop.fastloader.source import Source


@dataclass(frozen=True)
class Part:
    """Some rows of a block, in the memory of the whole of it.

    Threads fill theirs at the same time: no two have a row in common, and nobody else has seen that
    memory before the last part has been received, after all others.
    """

    source: Source
    block: Block
    rows: Sequence[np.ndarray]
    """That memory, as long as the batches are held."""
    batches: Sequence[Tree]
    """The block's, as they are once all of its parts are filled. They are there before that: made
    behind the last part they would be waited for, and by then a thread has the interpreter's lock
    for the next block, half a millisecond of a batch that takes three."""
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """Of its block."""
        return self.stop == len(self.block.indices)


def parts_of(source: Source, pool: Pool, blocks: Iterable[Block], rows: int) -> Iterator[Part]:
    """Those of each block, of so many rows; memory is lent as the first one is drawn."""
    for block in blocks:
        lent, count = source.lent(block, pool), len(block.indices)
        batches = source.trees(source.split(lent.seen, block))
        for start in range(0, count, rows):
            yield Part(source, block, lent.rows, batches, start, min(start + rows, count))
        del lent, batches  # or they would be held until the next block is drawn


def filled(part: Part) -> Part:
    """The same, its rows gathered."""
    mine = slice(part.start, part.stop)
    part.source.fill(part.block.indices[mine], [one[mine] for one in part.rows])
    return part


def joined(parts: Generator[Part, None, None]) -> Generator[Sequence[Tree], None, None]:
    """Batches of the blocks whose parts have all come; closing this closes `parts`."""
    try:
        for part in parts:
            if part.is_last:
                batches = part.batches
                del part  # or it would be held while the consumer has them
                yield batches
                del batches
    finally:
        parts.close()
