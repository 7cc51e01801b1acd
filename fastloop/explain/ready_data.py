"""Data in memory that takes the place of the parts that a rung lacks: batches, samples or files.

A rung is a job or a loop without some of its parts. Its loader reads the ready data as a Dataset,
which repeats them up to the length of the Dataset that they replace.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch.utils.data import default_collate, get_worker_info

from fastloop.core.move_tensors import map_tensors
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.types import Tree
from fastloop.data.dataset_batches import fetch_samples
from fastloop.data.image_files import LabelledImages
from fastloop.data.image_pixels import to_floats

MOST_READY = 8
"""Maximum number of ready batches."""
READY_S = 1.0
"""Seconds after which no further ready batch or sample is made, because making one may be slow."""


@dataclass(frozen=True)
class ReadySamples:
    """A dataset of samples in memory."""

    samples: Sequence[Tree]
    num_samples: int
    """Length of the dataset that is replaced."""

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tree:
        return self.samples[index % len(self.samples)]


@dataclass
class ReadyBatches:
    """A dataset that returns whole batches from memory, in turn, and so needs no collate."""

    batches: Sequence[Tree]
    num_samples: int
    """Length of the dataset that is replaced."""
    turn: count = field(default_factory=count)
    """Counts the batches that were returned."""

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tree:
        raise TypeError(f"{index}: batches are read whole, by __getitems__")

    def __getitems__(self, indices: list[int]) -> Tree:
        batch = self.batches[next(self.turn) % len(self.batches)]
        return map_tensors(lambda leaf: _hand_over(leaf, len(indices)), batch)

    def __reduce__(self) -> tuple[Any, ...]:
        # `turn` is left out, because pickling an itertools.count is deprecated.
        return ReadyBatches, (self.batches, self.num_samples)


@dataclass(frozen=True)
class ReadyFiles:
    """A dataset of images that are decoded from file contents in memory."""

    images: LabelledImages
    """The dataset that is replaced."""
    indices: Sequence[int]
    """The places in `images` of the files in memory."""
    data: Sequence[bytes]
    """The content of each of these files."""

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tree:
        place = index % len(self.indices)
        pixels = self.images.decode_file(self.data[place])
        _, label = self.images.files[self.indices[place]]
        return (pixels if self.images.as_uint8 else to_floats(pixels)), label


def _hand_over(leaf: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the first `rows` rows of a batch's tensor; in a worker, a copy in new shared memory.

    A tensor without dimensions has no rows, and is returned whole.
    """
    leaf = leaf[:rows] if leaf.ndim else leaf
    # In a worker, default_collate writes its batch to shared memory. A ready batch has to be
    # written, too: otherwise the hand-off would seem cheaper than it is.
    return leaf if get_worker_info() is None else default_collate([leaf])[0]


def make_samples(dataset: Any, indices: Iterable[int]) -> list[Tree]:
    """Make the samples of these indices in order; the rest is left out once READY_S has passed."""
    start_ns = now_ns()
    made = []
    for index in indices:
        made += fetch_samples(dataset, [index])
        if seconds_between(start_ns, now_ns()) > READY_S:
            break
    return made
