"""The indices of a user's sampler, read piece by piece as an epoch goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from operator import index
from typing import Any

import numpy as np
import torch

from fastloop.fastloader.batching import check_indices

ARRAYS = (torch.Tensor, np.ndarray, list)
"""Samplers that are read at once."""
MOST_INDICES = 4096
"""A piece of a sampler has no more indices, unless one batch has: endless and lazy samplers are
read this far ahead, and no further."""


def sampler_pieces(sampler: Iterable[Any], num_samples: int, batch_size: int) -> Iterator[Any]:
    """int64 indices of whole batches, in pieces that grow; those of an array in one piece.

    Iteration raises IndexError for an index out of bounds, and ValueError for no integer.
    """
    if isinstance(sampler, ARRAYS):
        yield check_indices(np.asarray(sampler), num_samples)
        return
    indices, size = iter(sampler), batch_size
    while len(piece := _next_indices(indices, size)):
        yield check_indices(piece, num_samples)
        size = max(batch_size, min(2 * size, MOST_INDICES - MOST_INDICES % batch_size))


def _next_indices(indices: Iterator[Any], count: int) -> np.ndarray:
    try:
        return np.fromiter(map(index, islice(indices, count)), np.int64)
    except TypeError as error:
        raise ValueError(f"a sampler gives integers: {error}") from None
