"""Loaders and samples that stand in for the parts above a rung, at no cost of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

import torch
from torch.utils.data import default_collate, get_worker_info

from fastloop.core import stats
from fastloop.core.plan import Plan, PreparedData
from fastloop.core.spans import now_ns, seconds_between
from fastloop.core.trees import map_tensors
from fastloop.core.types import Epochs, Tree
from fastloop.data.decode_image import to_floats
from fastloop.data.image_files import LabelledImages

SHARES = 3


@dataclass(frozen=True, kw_only=True)
class SubstituteLoader:
    """A loader that replaces a job's own; a function opens it."""

    open_epochs: Callable[[], AbstractContextManager[Epochs]]
    store: ClassVar[None] = None

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:  # noqa: ARG002
        """The epochs of the function."""
        return self.open_epochs()


@dataclass(frozen=True)
class ReadySamples:
    """Samples in memory, repeated up to the length of the dataset."""

    samples: Sequence[Tree]
    num_samples: int

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tree:
        return self.samples[index % len(self.samples)]


@dataclass
class ReadyBatches:
    """Batches in memory, in turn, as a dataset that needs no collate."""

    batches: Sequence[Tree]
    num_samples: int
    turn: count = field(default_factory=count)

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> Tree:
        raise TypeError(f"{index}: batches are read whole, by __getitems__")

    def __getitems__(self, indices: list[int]) -> Tree:
        batch = self.batches[next(self.turn) % len(self.batches)]
        return map_tensors(lambda leaf: _hand_over(leaf, len(indices)), batch)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the turn: pickling an itertools.count is deprecated.
        return ReadyBatches, (self.batches, self.num_samples)


@dataclass(frozen=True)
class ReadyFiles:
    """Images decoded from file contents in memory, repeated up to the length of the dataset."""

    images: LabelledImages
    indices: Sequence[int]
    data: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tree:
        place = index % len(self.indices)
        pixels = self.images.decode_file(self.data[place])
        _, label = self.images.files[self.indices[place]]
        return (pixels if self.images.as_uint8 else to_floats(pixels)), label


def _hand_over(leaf: torch.Tensor, rows: int) -> torch.Tensor:
    """The leaf's first rows; in a worker as a copy in new shared memory."""
    leaf = leaf[:rows] if leaf.ndim else leaf
    # In a worker default_collate writes its batch to shared memory, and so does any loader's.
    return leaf if get_worker_info() is None else default_collate([leaf])[0]


def share_seconds(batch: Tree) -> float:
    """Median seconds to write a batch to new shared memory, as a worker does to send it."""
    seconds = []
    for _ in range(SHARES):
        # A new copy each time, as share_memory_ leaves tensors alone that are shared already.
        copy = map_tensors(lambda leaf: leaf.cpu().clone(), batch)
        start_ns = now_ns()
        map_tensors(torch.Tensor.share_memory_, copy)
        seconds.append(seconds_between(start_ns, now_ns()))
    return stats.median(seconds)
