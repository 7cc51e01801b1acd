"""`order=random`: a new permutation each epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch

from fastloop.types import option


@option
class Random:
    """A uniform permutation by torch.randperm, from seed + epoch as torch's DistributedSampler
    does."""

    complete: ClassVar[bool] = True
    is_randperm: ClassVar[Literal[True]] = True

    def length(self, num_samples: int) -> int:
        """All of them."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """One piece, an int64 permutation of [0, num_samples)."""
        generator = torch.Generator().manual_seed(seed + epoch)
        yield torch.randperm(num_samples, generator=generator)
