"""`order=weighted`: samples drawn with replacement, each as often as its weight says."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import FilePath, PositiveInt, Strict

from fastloop.types import BadData, option
from fastloop.vectors import vector_in

PIECE = 1 << 20


@option
class Weighted:
    """torch's WeightedRandomSampler, without its limit of 2^24 weights; uniform without any."""

    complete: ClassVar[bool] = False
    weights: Annotated[FilePath, Strict(False)] | None
    num_samples: PositiveInt | None

    def files(self) -> list[Path]:
        """The file of weights, where there is one."""
        return [self.weights] if self.weights else []

    def length(self, num_samples: int) -> int:
        """How many are drawn in an epoch."""
        return self.num_samples or num_samples

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """int64 draws, a million to a piece; raises BadData for weights that can't be used."""
        generator = torch.Generator().manual_seed(seed + epoch)
        left = self.length(num_samples)
        while left > 0:
            size = (min(left, PIECE),)
            left -= PIECE
            if self.weights is None:
                yield torch.randint(num_samples, size, generator=generator)
            else:
                sums = _sums(self.weights, num_samples)
                points = torch.rand(size, generator=generator, dtype=torch.float64) * sums[-1]
                # right: a sample of weight 0 has no point of its own
                yield torch.searchsorted(sums, points, right=True)


@lru_cache(maxsize=1)  # read once a process: torch's sampler has its weights in memory, too
def _sums(path: Path, num_samples: int) -> torch.Tensor:
    """(num_samples,) float64: each weight and all before it."""
    weights = vector_in(path)
    if len(weights) != num_samples:
        raise BadData(f"{path}: {len(weights)} weights for {num_samples} samples")
    if weights.dtype.kind not in "iuf" or not np.isfinite(weights).all() or weights.min() < 0:
        raise BadData(f"{path}: weights are finite numbers, none below 0")
    if not weights.any():
        raise BadData(f"{path}: every weight is 0")
    return torch.from_numpy(np.cumsum(weights, dtype=np.float64))
