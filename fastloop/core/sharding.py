"""Division of an epoch's indices among ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch

Indices = TypeVar("Indices", np.ndarray, torch.Tensor)


def shard(pieces: Iterable[Indices], rank: int, world_size: int) -> Iterator[Indices]:
    """Yield the rank's part of each piece of an epoch's indices, as DistributedSampler deals them.

    Index k of the epoch belongs to rank k % world_size. All ranks get the same number of indices:
    ranks that are one short get one from the beginning of the epoch. Memory is bounded by a piece.
    """
    first: list[Indices] = []
    length = 0
    for piece in pieces:
        count = min(len(piece), world_size - len(first))
        # [[place]] copies; a view would keep the whole piece in memory until the end
        first += [piece[[place]] for place in range(count)]
        # the rank's first place in this piece, if `length` indices have come before it
        yield piece[(rank - length) % world_size :: world_size]
        length += len(piece)
    # The last round is incomplete, and this rank got nothing in it: the epoch goes on with its own
    # first indices, again and again if it has fewer of them than there are ranks.
    if length and rank >= length % world_size > 0:
        yield first[(rank - length) % world_size % length]
