"""Block shuffle: blocks of neighbouring rows in random order, with their rows shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from numbers import Integral

import numpy as np
import torch


@dataclass(frozen=True)
class Blocks:
    """Block shuffle, for `shuffle=`: blocks of neighbouring rows are visited in random order, and
    the rows of each `blocks_together` consecutive blocks are shuffled together.

    Args:
        block_size: rows of a block.
        blocks_together: number of blocks that are shuffled together; more of them mix the
            samples better and take more memory.

    Indices are drawn as the epoch proceeds; only the table of blocks grows with the number of
    samples. This is not a uniform permutation: rows of a block stay near each other, so that a file
    larger than memory can be read in long stretches. For such a file a block should be megabytes.

    With several ranks each rank has its own blocks, different ones in every epoch. All ranks draw
    the same table; the sequence of its blocks is cut into world_size stretches of ceil(num_samples
    / world_size) rows, the last of which are filled up with fewer than world_size rows from the
    beginning. A rank delivers the whole blocks of its stretch, as above, and then its rows of the
    blocks that are cut at the stretch's ends. No other block is read by two ranks.

    Raises ValueError for arguments that are not integers of 1 or more.

    >>> loader = FastLoader(rows, batch_size=64, shuffle=Blocks(1024, blocks_together=8))
    """

    block_size: int
    blocks_together: int = 1

    def __post_init__(self) -> None:
        for name in ("block_size", "blocks_together"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"{name}={value}: allowed is 1 or more")

    def pieces(
        self,
        num_samples: int,
        generator: torch.Generator,
        rank: int = 0,
        world_size: int = 1,
        batch_size: int = 1,
    ) -> Iterator[np.ndarray]:
        """Iterate over the rank's int64 indices; blocks that are shuffled together are one piece.

        If these blocks have a batch or more, a piece consists of whole batches: the remaining
        rows of its last block, which are neighbours, are shuffled into the next piece. If batches
        were cut across pieces instead, the remainder would be rows from anywhere, and every later
        piece would be read in hundreds of stretches. Only the last piece may end with a short
        batch.

        generator: in the same state for every rank.
        """
        count = -(-num_samples // self.block_size)
        blocks = torch.randperm(count, generator=generator, device="cpu")
        sequence = BlockSequence(blocks, self.block_size, num_samples)
        ends = blocks[:0]
        if world_size > 1:
            blocks, ends = sequence.stretch(rank, world_size)
            # The table is drawn before, from the generator that all ranks share.
            generator = _rank_generator(generator, rank, world_size)
        # Sliced one by one: split() would create the tensors of all slices at once.
        step = self.blocks_together
        starts = range(0, len(blocks), self.blocks_together)
        slices = (sequence.rows(blocks[start : start + step]) for start in starts)
        # Blocks that have less than a batch can't be rounded to whole batches.
        rest = blocks[:0]
        size = batch_size if step * self.block_size >= batch_size else 1
        for new_rows in chain(slices, [ends]):
            rows = torch.cat([rest, new_rows])
            whole = len(rows) - len(rows) % size
            rows, rest = rows[:whole], rows[whole:]
            if whole:
                yield _shuffle(rows, generator)
        if len(rest):
            yield _shuffle(rest, generator)


def _shuffle(rows: torch.Tensor, generator: torch.Generator) -> np.ndarray:
    return rows[torch.randperm(len(rows), generator=generator, device="cpu")].numpy()


def _rank_generator(shared: torch.Generator, rank: int, world_size: int) -> torch.Generator:
    """A generator for one rank: with a shared one all ranks would shuffle in the same way."""
    seeds = torch.empty(world_size, dtype=torch.int64, device="cpu").random_(generator=shared)
    return torch.Generator("cpu").manual_seed(int(seeds[rank]))


@dataclass(frozen=True, eq=False)
class BlockSequence:
    """The sequence of all rows, block after block. Parts of it are computed on demand."""

    blocks: torch.Tensor
    """int64, the block in each slot: a permutation of all blocks."""
    block_size: int
    """Rows of a block; the source's last block may have fewer."""
    num_samples: int

    def rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """int64 indices of these blocks' rows, block after block."""
        inside = torch.arange(min(self.block_size, self.num_samples), device="cpu")
        rows = (blocks.unsqueeze(1) * self.block_size + inside).flatten()
        # The source's last block may be short.
        return rows[rows < self.num_samples]

    def stretch(self, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The rank's share: int64 blocks that it has as a whole, and the int64 other rows.

        With L = ceil(num_samples / world_size), rank r has places r * L to (r + 1) * L - 1. Places
        beyond the end wrap around: fewer than world_size in all ranks together.
        """
        count = self.num_samples
        if not count:
            return self.blocks, self.blocks
        length = -(-count // world_size)
        begin = rank * length % count
        end = min(begin + length, count)
        again = max(0, begin + length - count)
        first, last = self._slot(begin - 1) + 1, self._slot(end)
        ends = [(begin, self._start(first)), (self._start(last), end)]
        if first > last:  # the stretch lies inside of one block
            first = last
            ends = [(begin, end)]
        parts = [self._between(*places) for places in [*ends, (0, again)]]
        return self.blocks[first:last], torch.cat(parts)

    @cached_property
    def _short(self) -> int:
        """The slot of the source's last block, which may be short."""
        return int(self.blocks.argmax())

    @property
    def _missing(self) -> int:
        return len(self.blocks) * self.block_size - self.num_samples

    def _start(self, slot: int) -> int:
        """The first place of a slot."""
        return slot * self.block_size - self._missing * (slot > self._short)

    def _slot(self, place: int) -> int:
        """The slot of a place; for the end of the sequence the slot after the last one."""
        is_after_short = place >= self._start(self._short + 1)
        return (place + self._missing * is_after_short) // self.block_size

    def _between(self, begin: int, end: int) -> torch.Tensor:
        """int64 indices of the rows at the places begin to end - 1."""
        if begin == end:
            return self.blocks[:0]
        slot = self._slot(begin)
        rows = self.rows(self.blocks[slot : self._slot(end - 1) + 1])
        return rows[begin - self._start(slot) :][: end - begin]
