"""Sources whose samples are read one by one, as torch's map-style Datasets, and then collated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset, default_collate, default_convert

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_readers import Open, copy_for_threads, share, take_turns
from fastloop.fastloader.sample_draws import COLLATE, SAMPLE, Begin, SampleDraws
from fastloop.fastloader.source import ColumnSource, column_source, seed_columns
from fastloop.fastloader.source_kinds import ListedSamples, is_dataset, read_source

CollateFn = Callable[[Any], Tree]


@dataclass(frozen=True)
class DatasetSource:
    """A map-style dataset, read by sample, or by batch where it has `__getitems__`.

    The loader's threads read it, which pays where reading releases the GIL, as files, decoders and
    large numpy operations do.
    """

    dataset: Any
    collate_fn: CollateFn
    is_unbatched: bool
    """True: each sample by itself instead of batches."""
    open: Open
    """The dataset and collate_fn, for the thread that makes a batch."""
    is_thread_safe: bool = False
    """True where threads may read the dataset at the same time."""
    begin: Begin | None = None
    """Called with what is about to draw random numbers; None: they are not seeded."""

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, group: Sequence[np.ndarray]) -> list[Tree]:
        """The results of collate_fn. Several threads call this concurrently."""
        with self.open() as parts:
            return [self._batch(*parts, indices.tolist()) for indices in group]

    def _batch(self, dataset: Any, collate_fn: CollateFn, indices: list[int]) -> Tree:
        getitems = None if self.is_unbatched else getattr(dataset, "__getitems__", None)
        if getitems:
            self._begin(SAMPLE, indices)
            samples = getitems(indices)
        else:
            samples = [self._sample(dataset, index) for index in indices]
        self._begin(COLLATE, indices)
        return collate_fn(samples[0] if self.is_unbatched else samples)

    def _sample(self, dataset: Any, index: int) -> Any:
        self._begin(SAMPLE, (index,))
        return dataset[index]

    def _begin(self, kind: int, indices: Sequence[int]) -> None:
        if self.begin is not None:
            self.begin(kind, indices)


BatchSource = ColumnSource | DatasetSource


@dataclass(frozen=True)
class ColumnDataset(Dataset):
    """The samples of columns by index, as DataLoader's attribute `dataset` gives them."""

    source: ColumnSource
    """Of single samples."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Tree:
        """Return a sample; raises IndexError for an index out of bounds."""
        (sample,) = self.source.batches([np.array([range(len(self))[index]])])
        return sample


def as_dataset(source: Any) -> Dataset:
    """The source itself where it is a map-style dataset, else a dataset of the tree's samples."""
    if isinstance(source, TensorDataset):
        return source
    source = read_source(source)
    return source if is_dataset(source) else ColumnDataset(_without_batches(column_source(source)))


def open_source(
    source: Any, collate_fn: CollateFn | None, is_unbatched: bool, thread_safe: bool = False
) -> BatchSource:
    """A source of batches, or of single samples, of a tree of columns or a map-style dataset.

    A TensorDataset is treated as its tensors, in batches that are lists, as default_collate makes
    them. Raises ValueError for anything else, and for a collate_fn where nothing is collated.
    """
    if type(source) is TensorDataset and collate_fn is None:
        source = list(source.tensors)
    else:
        source = read_source(source)
    if is_dataset(source):
        default = default_convert if is_unbatched else default_collate
        parts = source, collate_fn or default
        is_shared = thread_safe or isinstance(source, ListedSamples)
        opened = share(parts) if is_shared else take_turns(parts)
        return DatasetSource(*parts, is_unbatched, opened, is_shared)
    if collate_fn is not None:
        raise ValueError("collate_fn is for a Dataset's samples; transform= takes a tree's batches")
    columns = column_source(source)
    return _without_batches(columns) if is_unbatched else columns


def _without_batches(source: ColumnSource) -> ColumnSource:
    """The source with its samples one by one, without a batch dimension; batches are of size 1."""
    unflatten = source.unflatten or _first
    return replace(source, unflatten=lambda leaves: unflatten([leaf[0] for leaf in leaves]))


def _first(leaves: Sequence[torch.Tensor]) -> Tree:
    return leaves[0]


def prepare_source(source: BatchSource, num_threads: int, draws: SampleDraws) -> BatchSource:
    """The source for an epoch: with seeds, and a Dataset copied for threads where it is not shared.

    Raises ValueError for a Dataset that can't be copied.
    """
    if isinstance(source, ColumnSource):
        return seed_columns(source, draws.epoch_seed)
    is_copied = num_threads > 1 and not source.is_thread_safe
    parts = source.dataset, source.collate_fn
    opened = copy_for_threads(parts) if is_copied else source.open
    return replace(source, begin=draws.begin, open=opened)
