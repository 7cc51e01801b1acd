"""torch's samplers, with the moments at which they draw."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

DRAWS_FIRST = SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler
"""Samplers that have drawn everything when they deliver their first index."""


def reads_ahead(sampler: Any) -> bool:
    """True for a sampler of torch that may be read ahead: nobody notices when it draws after its
    first index."""
    if type(sampler) is BatchSampler:
        return reads_ahead(sampler.sampler) and not has_leftover(sampler.sampler)
    if type(sampler) is RandomSampler:
        # Without a generator of its own, it draws from one that nobody else has.
        return sampler.generator is None or has_leftover(sampler)
    return type(sampler) in (*DRAWS_FIRST, tuple, range)


def has_leftover(sampler: Any) -> bool:
    """True for a RandomSampler that draws from its generator when it begins, and when it ends a
    permutation of which it uses nothing."""
    if type(sampler) is not RandomSampler or sampler.replacement or sampler.generator is None:
        return False
    return sampler.num_samples == len(sampler.data_source)  # pyright: ignore[reportArgumentType]


def draw_leftover(num_samples: int, generator: torch.Generator | None) -> None:
    """Draw the permutation that a RandomSampler draws at its end."""
    torch.randperm(num_samples, generator=generator, dtype=torch.int32, device="cpu")
