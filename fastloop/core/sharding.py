"""Divide an epoch's indices among ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch

Indices = TypeVar("Indices", np.ndarray, torch.Tensor)


def shard(pieces: Iterable[Indices], rank: int, world_size: int) -> Iterator[Indices]:
    """Yield the rank's part of each piece of an epoch's indices, as DistributedSampler does.

    Index k of the epoch belongs to rank k % world_size. All ranks get the same number of indices:
    a rank that is one short gets one from the beginning of the epoch. Only one piece is in memory
    at a time.
    """
    first: list[Indices] = []
    length = 0
    for piece in pieces:
        count = min(len(piece), world_size - len(first))
        # Indexing by [place] copies; a view would keep the whole piece in memory until the end.
        first += [piece[[place]] for place in range(count)]
        # The epoch has `length` indices before this piece. The start of the slice is the place of
        # the rank's first index in the piece.
        yield piece[(rank - length) % world_size :: world_size]
        length += len(piece)
    # In a round, each rank gets one index. If the last round is incomplete and this rank got no
    # index in it, the rank gets one of the epoch's first indices. These indices are used again and
    # again if the epoch has fewer indices than there are ranks.
    if length and rank >= length % world_size > 0:
        yield first[(rank - length) % world_size % length]
