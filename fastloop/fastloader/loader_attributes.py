"""The values of FastLoader's attributes sampler, batch_sampler and collate_fn, as in DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, default_collate, default_convert

from fastloop.fastloader.batch_transform import draws_once
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.open_source import ColumnDataset
from fastloop.fastloader.thread_access import CollateFn


@dataclass(frozen=True)
class EpochBatches:
    """The batch sampler of a loader that was not given one: the batches of its next epoch.

    DataLoader has this attribute and `collate_fn`: accelerate's skip_first_batches, for one, builds
    another loader from them.
    """

    loader: Any
    """The FastLoader."""

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[int]]:
        return self.loader.index_batches()

    @property
    def batch_size(self) -> int | None:
        """The loader's batch_size."""
        return self.loader.batch_size

    @property
    def drop_last(self) -> bool:
        """The loader's drop_last."""
        return self.loader.drop_last

    @property
    def sampler(self) -> Any:
        """The loader's sampler."""
        return self.loader.sampler


@dataclass(frozen=True)
class EpochIndices:
    """The sampler of a loader that was not given one: the indices of its next epoch.

    DataLoader has this attribute, and programs divide by its length, the number of samples.
    """

    loader: Any
    """The FastLoader."""

    def __len__(self) -> int:
        return self.loader._num_indices()

    def __iter__(self) -> Iterator[int]:
        return self.loader._single_indices()


@dataclass(frozen=True)
class Collation:
    """A collate_fn that makes a loader's batches from the samples of its `dataset`."""

    collate: Callable[[Any], Tree]
    transform: Callable[[Tree], Tree]
    is_unbatched: bool = False
    """True if it is called with a single sample instead of a list."""

    def __call__(self, samples: Sequence[Tree]) -> Tree:
        """The transformed batch."""
        # A transform that draws once for each call would draw once for the whole batch.
        if not self.is_unbatched and draws_once(self.transform):
            return self.collate([self.transform(sample) for sample in samples])
        return self.transform(self.collate(samples))


def stack_samples(samples: Sequence[Tree]) -> Tree:
    """A batch of the same structure as its samples, with tensors as leaves."""
    return pytree.tree_map(lambda *leaves: torch.stack(leaves), *samples)


def collation(
    collate_fn: CollateFn | None,
    transform: Callable[[Tree], Tree] | None,
    dataset: Dataset,
    is_unbatched: bool,
) -> CollateFn:
    """The collate_fn of a loader of this dataset; is_unbatched: it delivers single samples."""
    default = stack_samples if isinstance(dataset, ColumnDataset) else default_collate
    collate = collate_fn or (default_convert if is_unbatched else default)
    return collate if transform is None else Collation(collate, transform, is_unbatched)
