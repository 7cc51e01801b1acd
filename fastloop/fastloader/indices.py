"""Which rows an epoch has, and how they are cut into batches and blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Block:
    """Rows that are gathered at once, and the batches that they are."""

    indices: np.ndarray
    """int64."""
    sizes: int | list[int]
    """Rows of each batch, the last of them perhaps fewer; or of every single one."""

    def split(self) -> list[int]:
        """Rows of every single batch."""
        if isinstance(self.sizes, list):
            return self.sizes
        whole, short = divmod(len(self.indices), self.sizes)
        return [self.sizes] * whole + [short] * bool(short)


def checked(indices: np.ndarray, num_samples: int) -> np.ndarray:
    """The same as int64; raises IndexError for one outside of [0, num_samples).

    Once an epoch: the gather itself clips, because a check there copies every batch once more.
    """
    indices = np.ascontiguousarray(indices, np.int64)
    if len(indices) and (indices.min() < 0 or indices.max() >= num_samples):
        wrong = indices[(indices < 0) | (indices >= num_samples)][0]
        raise IndexError(f"index {wrong} is out of bounds for {num_samples} samples")
    return indices


def share(indices: np.ndarray, rank: int, world_size: int) -> np.ndarray:
    """A rank's, as torch's DistributedSampler gives them: every one has as many, the last ones
    some from the beginning."""
    if world_size == 1 or not len(indices):
        return indices
    count = -(-len(indices) // world_size)
    return np.resize(indices, count * world_size)[rank::world_size]


def cut(indices: np.ndarray, batch_size: int, drop_last: bool, batches: int) -> list[Block]:
    """Blocks of so many batches."""
    if drop_last:
        indices = indices[: len(indices) - len(indices) % batch_size]
    rows = batch_size * batches
    return [
        Block(indices[start : start + rows], batch_size) for start in range(0, len(indices), rows)
    ]


def cut_as_given(lists: Iterable[Sequence[int]], num_samples: int, rows: int) -> list[Block]:
    """Blocks of whole batches, of at most so many rows where a batch has not more."""
    blocks: list[Block] = []
    held: list[np.ndarray] = []
    for one in lists:
        batch = np.asarray(one, np.int64)
        if held and sum(map(len, held)) + len(batch) > rows:
            blocks.append(_joined(held, num_samples))
            held = []
        held.append(batch)
    return [*blocks, _joined(held, num_samples)] if held else blocks


def _joined(held: list[np.ndarray], num_samples: int) -> Block:
    return Block(checked(np.concatenate(held), num_samples), [len(one) for one in held])


def permuted(num_samples: int, generator: torch.Generator | None) -> np.ndarray:
    """A new permutation, as torch's RandomSampler draws it from that generator."""
    return torch.randperm(num_samples, generator=generator).numpy()
