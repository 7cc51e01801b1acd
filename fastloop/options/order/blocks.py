"""`order=blocks`: blocks of consecutive samples are shuffled, then the samples inside each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch

from fastloop.core.bounds import SampleCount
from fastloop.core.seeds import epoch_seed
from fastloop.core.types import option
from fastloop.fastloader import Blocks


@option
class BlockOrder:
    """Block shuffle: blocks of consecutive samples are shuffled, then the samples inside each.

    Only the table of blocks grows with the number of samples. The order is not a uniform
    permutation: the samples of `groups_together` blocks stay together, as in a shuffle buffer.
    """

    complete: ClassVar[bool] = True
    block_size: SampleCount
    """Number of consecutive samples of a block."""
    groups_together: SampleCount
    """Number of blocks in a group; the samples of a group are shuffled together."""

    def length(self, num_samples: int) -> int:
        """The number of samples."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """Yield int64 indices, one piece per group of blocks that are shuffled together."""
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
        blocks = Blocks(self.block_size, self.groups_together)
        return map(torch.from_numpy, blocks.pieces(num_samples, generator))
