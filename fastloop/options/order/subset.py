"""`order=subset`: a subset of the samples, reshuffled every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field, FilePath, Strict, model_validator

from fastloop.core.seeds import epoch_seed
from fastloop.core.types import BadData, option
from fastloop.options.order._npy import load_vector


@option
class SubsetOrder:
    """A fixed subset in a new order every epoch, like torch's SubsetRandomSampler.

    The subset is a `fraction` drawn by the trial's seed, or the user's `indices`.
    """

    complete: ClassVar[bool] = False
    fraction: Annotated[float, Field(gt=0, le=1)] | None
    """Size of the subset as a share of the samples, greater than 0 and at most 1; None: `indices`
    is set."""
    indices: Annotated[FilePath, Strict(False)] | None
    """Path of a .npy file with the indices of the subset; None: `fraction` is set."""

    @model_validator(mode="after")
    def _exactly_one_is_set(self) -> SubsetOrder:
        if (self.fraction is None) == (self.indices is None):
            settings = f"fraction={self.fraction} and indices={self.indices}"
            raise ValueError(f"order=subset: {settings}; set one of them, the other to null")
        return self

    def files(self) -> list[Path]:
        """A list of the file of indices; empty if `fraction` is set."""
        return [self.indices] if self.indices else []

    def length(self, num_samples: int) -> int:
        """Number of indices in the subset, at least one; raises BadData for an unusable file."""
        if self.indices:
            return len(_read_indices(self.indices, num_samples))
        return max(1, round((self.fraction or 0) * num_samples))

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """Yield one piece, the int64 indices of the subset in a new order.

        Raises BadData for an unusable file.
        """
        generator = torch.Generator().manual_seed(epoch_seed(seed, epoch))
        subset = (
            _read_indices(self.indices, num_samples)
            if self.indices
            else _draw_subset(num_samples, self.length(num_samples), seed)
        )
        yield subset[torch.randperm(len(subset), generator=generator)]


# The subset is cached, so that an epoch costs no more than with torch's sampler.
@lru_cache(maxsize=1)
def _draw_subset(num_samples: int, count: int, seed: int) -> torch.Tensor:
    """int64 (count,): different indices below num_samples, drawn by the seed."""
    return torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))[:count]


@lru_cache(maxsize=1)
def _read_indices(path: Path, num_samples: int) -> torch.Tensor:
    """int64 (count,): the indices in the file; raises BadData if they are no valid indices."""
    indices = load_vector(path)
    if indices.dtype.kind not in "iu":
        raise BadData(f"{path}: indices have to be integers, not {indices.dtype}")
    if indices.min() < 0 or indices.max() >= num_samples:
        outside = indices[(indices < 0) | (indices >= num_samples)][0]
        raise BadData(f"{path}: index {outside} is not in 0 to {num_samples - 1}")
    return torch.from_numpy(indices.astype("int64"))
