"""`order=subset`: some of the samples, shuffled anew every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field, FilePath, Strict, model_validator

from fastloop.types import BadData, option
from fastloop.vectors import vector_in


@option
class Subset:
    """torch's SubsetRandomSampler: the same samples in every epoch of a trial, each time in
    another order.

    A fraction is chosen by the trial's seed, `indices` by the user.
    """

    complete: ClassVar[bool] = False
    fraction: Annotated[float, Field(gt=0, le=1)] | None
    indices: Annotated[FilePath, Strict(False)] | None

    @model_validator(mode="after")
    def _one_of_both(self) -> Subset:
        if (self.fraction is None) == (self.indices is None):
            given = f"fraction={self.fraction} and indices={self.indices}"
            raise ValueError(f"order=subset: {given}; one of both, the other null")
        return self

    def files(self) -> list[Path]:
        """The file of indices, where there is one."""
        return [self.indices] if self.indices else []

    def length(self, num_samples: int) -> int:
        """How many are chosen, at least one; raises BadData for a file that can't be used."""
        if self.indices:
            return len(_read(self.indices, num_samples))
        return max(1, round((self.fraction or 0) * num_samples))

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """One piece, the chosen int64 indices in a new order."""
        generator = torch.Generator().manual_seed(seed + epoch)
        chosen = (
            _read(self.indices, num_samples)
            if self.indices
            else _drawn(num_samples, self.length(num_samples), seed)
        )
        yield chosen[torch.randperm(len(chosen), generator=generator)]


@lru_cache(maxsize=1)  # an epoch costs what torch's sampler costs, which has its indices already
def _drawn(num_samples: int, count: int, seed: int) -> torch.Tensor:
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))[:count]


@lru_cache(maxsize=1)
def _read(path: Path, num_samples: int) -> torch.Tensor:
    indices = vector_in(path)
    if indices.dtype.kind not in "iu":
        raise BadData(f"{path}: indices are integers, not {indices.dtype}")
    if indices.min() < 0 or indices.max() >= num_samples:
        outside = indices[(indices < 0) | (indices >= num_samples)][0]
        raise BadData(f"{path}: index {outside} is not in 0 to {num_samples - 1}")
    return torch.from_numpy(indices.astype("int64"))
