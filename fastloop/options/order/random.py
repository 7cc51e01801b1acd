"""`order=random`: a new permutation every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import torch

from fastloop.core.seeds import epoch_seed
from fastloop.core.types import option


@option
class RandomOrder:
    """A uniform permutation by torch.randperm, seeded by the trial's seed and the epoch."""

    complete: ClassVar[bool] = True
    is_randperm: ClassVar[Literal[True]] = True
    """Marks the class as a RandpermOrder, which some loaders draw themselves."""

    def length(self, num_samples: int) -> int:
        """The number of samples."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """Yield one piece, an int64 permutation of [0, num_samples)."""
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
        yield torch.randperm(num_samples, generator=generator)
