"""`order=random`: a new permutation each epoch."""

from __future__ import annotations

import torch

from fastloop.types import option


@option
class Random:
    """A uniform permutation by torch.randperm, from seed + epoch as torch's DistributedSampler
    does."""

    def indices(self, num_samples: int, seed: int, epoch: int) -> torch.Tensor:
        """int64 permutation of [0, num_samples)."""
        generator = torch.Generator().manual_seed(seed + epoch)
        return torch.randperm(num_samples, generator=generator)
