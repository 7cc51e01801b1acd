"""`order=blocks`: groups of neighbours are shuffled, then the samples inside each group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from pydantic import PositiveInt

from fastloop.types import option


@option
class Blocks:
    """Seed 004's fast shuffling: only the table of groups grows with the number of samples.

    Not a uniform permutation: a group's samples stay together, and with `groups_together` those of
    that many groups, as in a shuffle buffer.
    """

    complete: ClassVar[bool] = True
    block_size: PositiveInt
    groups_together: PositiveInt

    def length(self, num_samples: int) -> int:
        """All of them."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """int64 indices, one piece for the groups that are shuffled into each other."""
        generator = torch.Generator().manual_seed(seed + epoch)
        groups = torch.randperm(-(-num_samples // self.block_size), generator=generator)
        inside = torch.arange(self.block_size)
        # split() would make as many tensors as there are groups at once
        for start in range(0, len(groups), self.groups_together):
            together = groups[start : start + self.groups_together]
            indices = (together.unsqueeze(1) * self.block_size + inside).flatten()
            indices = indices[indices < num_samples]  # the last group may be short
            yield indices[torch.randperm(len(indices), generator=generator)]
