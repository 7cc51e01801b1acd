"""The values of FastLoader's attributes sampler, batch_sampler and collate_fn, as in DataLoader.

Programs read these attributes of a DataLoader, and may build another loader from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset, default_collate, default_convert

from fastloop.fastloader.batch_transform import draws_once
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.open_source import ColumnDataset
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.thread_access import CollateFn


@dataclass(frozen=True)
class EpochBatches:
    """The batch sampler of a loader that was not given one: the batches of its next epoch.

    For example, accelerate's skip_first_batches builds another loader from this batch sampler and
    from `collate_fn`.
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

    DataLoader has this attribute, and programs divide by its length, the number of samples that a
    rank delivers.
    """

    loader: Any
    """The FastLoader."""

    @property
    def _order(self) -> LoaderOrder:
        """The loader's order, with the indices of a batch that drop_last drops."""
        return replace(self.loader._epochs.order, batch_sampler=None, drop_last=False)

    def __len__(self) -> int:
        return self._order.rank_share(self._order.num_samples)

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.loader._batches_of(self._order))


@dataclass(frozen=True)
class Collation:
    """A collate_fn that also applies the loader's transform."""

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
    """The collate_fn of a loader of this dataset. is_unbatched: the loader delivers single samples.

    collate_fn, transform: the user's functions; None: the user has given no such function.
    """
    default = stack_samples if isinstance(dataset, ColumnDataset) else default_collate
    collate = collate_fn or (default_convert if is_unbatched else default)
    return collate if transform is None else Collation(collate, transform, is_unbatched)
