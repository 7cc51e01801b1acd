"""`order=buckets`: batches of samples of similar length, like torchtext's `pool`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch

from fastloop.core.bounds import SampleCount
from fastloop.core.seeds import epoch_seed
from fastloop.core.types import Unsupported, option


@dataclass(frozen=True, eq=False)
class LengthBucketOrder:
    """The order of BucketOrder for samples with known lengths."""

    buckets: BucketOrder
    lengths: torch.Tensor
    """int64 (num_samples,): the length of each sample's longest leaf."""
    world_size: int = 1
    """Number of ranks among which the indices are dealt out."""
    complete: ClassVar[bool] = True

    def for_world_size(self, world_size: int) -> LengthBucketOrder:
        """The order for this number of ranks, which all get samples of similar length in a step."""
        return replace(self, world_size=world_size)

    def length(self, num_samples: int) -> int:
        """The number of samples."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """Yield one int64 bucket per piece, then the samples of an incomplete batch, unsorted.

        If this last batch were sorted too, drop_last would always leave out the longest samples.
        """
        # Index k goes to rank k % world_size, so the batches of all ranks in one step are `size`
        # consecutive samples.
        size = self.buckets.batch_size * self.world_size
        bucket_size = max(1, self.buckets.bucket_size // size) * size
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
        shuffled = torch.randperm(num_samples, generator=generator)
        whole = num_samples - num_samples % size
        for start in range(0, whole, bucket_size):
            bucket = shuffled[start : min(start + bucket_size, whole)]
            # The sort is stable, so that samples of equal length keep their random order on every
            # machine.
            batches = bucket[self.lengths[bucket].argsort(stable=True)].view(-1, size)
            yield batches[torch.randperm(len(batches), generator=generator)].flatten()
        if whole < num_samples:
            yield shuffled[whole:]


@option
class BucketOrder:
    """Bucketing by length: `bucket_size` samples of a new permutation are sorted by length.

    Each bucket is cut into batches, which are then shuffled.
    """

    complete: ClassVar[bool] = True
    batch_size: SampleCount
    """Number of samples of a batch."""
    bucket_size: SampleCount
    """Number of samples that are sorted by length together."""

    def with_lengths(self, lengths: np.ndarray) -> LengthBucketOrder:
        """The order of samples with these lengths."""
        return LengthBucketOrder(self, torch.from_numpy(lengths))

    def length(self, num_samples: int) -> int:
        """The number of samples."""
        return num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:  # noqa: ARG002
        """Raise Unsupported: only the order that `with_lengths` returns has pieces."""
        raise Unsupported("order=buckets: the lengths of the samples are not known yet")
