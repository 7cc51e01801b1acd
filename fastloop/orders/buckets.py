"""`order=buckets`: batches of samples of similar length, as torchtext's `pool` makes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt

from fastloop.types import option


@dataclass(frozen=True, eq=False)
class Bucketed:
    """The order of samples whose lengths are known."""

    buckets: Buckets
    lengths: torch.Tensor
    """int64 (num_samples,)."""
    world_size: int = 1
    complete: ClassVar[bool] = True

    def dealt_to(self, world_size: int) -> Bucketed:
        """The same, cut into what all ranks load in a step: a batch of each then has its samples
        from one place of a sorted bucket."""
        return replace(self, world_size=world_size)

    def length(self, num_samples: int) -> int:
        """All of them."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """An int64 bucket a piece; the samples of the short batch come last, and are any.

        Were they sorted too, drop_last would always leave out the longest.
        """
        size = self.buckets.batch_size * self.world_size
        bucket_size = max(1, self.buckets.bucket_size // size) * size
        generator = torch.Generator().manual_seed(seed + epoch)
        shuffled = torch.randperm(num_samples, generator=generator)
        whole = num_samples - num_samples % size
        for start in range(0, whole, bucket_size):
            bucket = shuffled[start : min(start + bucket_size, whole)]
            batches = bucket[self.lengths[bucket].argsort(stable=True)].view(-1, size)
            yield batches[torch.randperm(len(batches), generator=generator)].flatten()
        if whole < num_samples:
            yield shuffled[whole:]


@option
class Buckets:
    """Of a new permutation each epoch, `bucket_size` samples at a time are sorted by length and cut
    into batches, which are then shuffled."""

    complete: ClassVar[bool] = True
    batch_size: PositiveInt
    bucket_size: PositiveInt

    def with_lengths(self, lengths: np.ndarray) -> Bucketed:
        """The order of samples that are that long."""
        return Bucketed(self, torch.from_numpy(lengths))

    def length(self, num_samples: int) -> int:
        """All of them."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """As for samples that are all of one length: a permutation."""
        return self.with_lengths(np.zeros(num_samples, np.int64)).pieces(num_samples, seed, epoch)
