"""Blocks of rows laid end to end in the order in which they were drawn, and each rank's stretch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True, eq=False)
class Laid:
    """The sequence of all rows, block after block; no more of it is made than is asked for.

    A *slot* is which block of the sequence, a *place* which row of it.
    """

    blocks: torch.Tensor
    """int64, which block lies in each slot: all of them, each once."""
    block_size: int
    """Rows of a block; of the source's last one perhaps fewer."""
    num_samples: int

    def rows(self, blocks: torch.Tensor) -> torch.Tensor:
        """int64, those of the blocks, one after the other."""
        inside = torch.arange(min(self.block_size, self.num_samples), device="cpu")
        rows = (blocks.unsqueeze(1) * self.block_size + inside).flatten()
        return rows[rows < self.num_samples]  # the last block may be short

    def of_rank(self, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """int64, the blocks that are all that rank's, and its rows of those that are not.

        With L = ceil(num_samples / world_size) rank r has places r * L to (r + 1) * L - 1, those
        beyond the end being again those from the beginning: fewer than world_size of all ranks.
        """
        count = self.num_samples
        if not count:
            return self.blocks, self.blocks
        length = -(-count // world_size)
        begin = rank * length % count
        end, again = min(begin + length, count), max(0, begin + length - count)
        first, last = self._slot(begin - 1) + 1, self._slot(end)
        ends = [(begin, self._start(first)), (self._start(last), end)]
        if first > last:  # no more than a part of one block
            first, ends = last, [(begin, end)]
        parts = [self._between(*places) for places in [*ends, (0, again)]]
        return self.blocks[first:last], torch.cat(parts)

    @cached_property
    def _short(self) -> int:
        """The slot of the block that may be short: the source's last one."""
        return int(self.blocks.argmax())

    @property
    def _missing(self) -> int:
        return len(self.blocks) * self.block_size - self.num_samples

    def _start(self, slot: int) -> int:
        """The place where that slot begins."""
        return slot * self.block_size - self._missing * (slot > self._short)

    def _slot(self, place: int) -> int:
        """The one in which that place lies; of the sequence's end the slot after the last one."""
        is_behind = place >= self._start(self._short + 1)
        return (place + self._missing * is_behind) // self.block_size

    def _between(self, begin: int, end: int) -> torch.Tensor:
        """int64, the rows of places begin to end - 1."""
        if begin == end:
            return self.blocks[:0]
        slot = self._slot(begin)
        rows = self.rows(self.blocks[slot : self._slot(end - 1) + 1])
        return rows[begin - self._start(slot) :][: end - begin]
