"""`order=weighted`: samples drawn with replacement, in proportion to their weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import FilePath, Strict

from fastloop.core.bounds import SampleCount
from fastloop.core.seeds import epoch_seed
from fastloop.core.types import BadData, option
from fastloop.options.order._npy import load_vector

PIECE = 1 << 20
"""Indices per piece."""


@option
class WeightedOrder:
    """Weighted sampling with replacement, like torch's WeightedRandomSampler.

    Unlike torch's sampler, it takes more than 2^24 weights. Without weights, all samples have the
    same probability.
    """

    complete: ClassVar[bool] = False
    weights: Annotated[FilePath, Strict(False)] | None
    """Path of a .npy file with a weight for each sample; None: equal weights."""
    num_samples: SampleCount | None
    """Number of samples drawn per epoch; None: the size of the dataset."""

    def files(self) -> list[Path]:
        """The file of weights, if there is one."""
        return [self.weights] if self.weights else []

    def length(self, num_samples: int) -> int:
        """The number of samples drawn in an epoch."""
        return self.num_samples or num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """Yield int64 draws, about a million per piece; raises BadData for unusable weights."""
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
        remaining = self.length(num_samples)
        while remaining > 0:
            size = (min(remaining, PIECE),)
            remaining -= PIECE
            if self.weights is None:
                yield torch.randint(num_samples, size, generator=generator)
            else:
                sums = _sums(self.weights, num_samples)
                # float64: float32 could not tell the sums of many weights apart.
                points = torch.rand(size, generator=generator, dtype=torch.float64) * sums[-1]
                # right=True gives a sample of weight 0 an empty interval, so it is never drawn.
                yield torch.searchsorted(sums, points, right=True)


# The weights are read once per process and kept, as torch's sampler keeps its weights in memory.
@lru_cache(maxsize=1)
def _sums(path: Path, num_samples: int) -> torch.Tensor:
    """(num_samples,) float64, the cumulative sums of the weights."""
    weights = load_vector(path)
    if len(weights) != num_samples:
        raise BadData(f"{path}: {len(weights)} weights for {num_samples} samples")
    if weights.dtype.kind not in "iuf" or not np.isfinite(weights).all() or weights.min() < 0:
        raise BadData(f"{path}: weights have to be finite and not negative")
    if not weights.any():
        raise BadData(f"{path}: every weight is 0")
    return torch.from_numpy(np.cumsum(weights, dtype=np.float64))
