"""The source of batches that is made of a user's argument to FastLoader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
    default_convert,
)

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.columns.ragged_rows import RaggedTree, is_ragged_tree
from fastloop.fastloader.dataset_readers import share, take_turns
from fastloop.fastloader.dataset_source import BatchSource, CollateFn, DatasetSource
from fastloop.fastloader.epoch_order import asks_for_lists
from fastloop.fastloader.iterable_source import IterableSource
from fastloop.fastloader.recognised_images import recognise_images
from fastloop.fastloader.source import ColumnSource
from fastloop.fastloader.source_kinds import (
    ListedSamples,
    check_samples,
    is_dataset,
    read_source,
)
from fastloop.fastloader.table_columns import columns_of_hf_dataset
from fastloop.fastloader.tree_columns import column_source
from fastloop.fastloader.worker_processes import WorkerProcesses


@dataclass(frozen=True)
class Reading:
    """A loader's settings for how its source is read."""

    collate_fn: CollateFn | None
    batch_size: int | None
    sampler: Any
    is_thread_safe: bool
    is_native: bool
    """True: an image folder of torchvision is read as columns if that makes the same batches."""
    workers: WorkerProcesses | None
    """The processes that read an IterableDataset; None: a thread reads it."""

    @property
    def is_unbatched(self) -> bool:
        """True: no batches are formed of samples."""
        return self.batch_size is None

    @property
    def asks_for_lists(self) -> bool:
        """True: the source is asked for the lists of indices of a BatchSampler."""
        return asks_for_lists(self.batch_size, self.sampler)


@dataclass(frozen=True)
class ColumnDataset(Dataset):
    """The samples of columns by index, as DataLoader's attribute `dataset` gives them."""

    source: ColumnSource
    """Its batches are single samples."""

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Tree:
        """Return a sample; raises IndexError for an index out of bounds."""
        (sample,) = self.source.batches([np.array([range(len(self))[index]])])
        return sample


def as_dataset(source: Any) -> Dataset:
    """The source itself if it is a Dataset or a list, else a dataset of the tree's samples."""
    if isinstance(source, Dataset) or type(source) is list:
        return source  # pyright: ignore[reportReturnType] - as DataLoader's attribute
    source = read_source(source)
    if is_ragged_tree(source):
        return RaggedTree(source)
    return source if is_dataset(source) else ColumnDataset(_without_batches(column_source(source)))


def open_source(source: Any, reading: Reading) -> BatchSource | IterableSource:
    """A source of batches, or of single samples, of a tree of columns or a Dataset.

    A TensorDataset is treated as its tensors, in batches that are lists, as default_collate makes
    them. Raises ValueError for anything else, and for a collate_fn if there is nothing to collate.
    """
    collate_fn = reading.collate_fn
    default = default_convert if reading.is_unbatched else default_collate
    if isinstance(source, IterableDataset):
        return IterableSource(source, collate_fn or default, reading.workers)
    # A collate_fn of the user may take any items.
    if collate_fn is None:
        check_samples(source)
    source = _columns_of_samples(source, reading) or read_source(source)
    if is_ragged_tree(source):
        return _open_ragged(RaggedTree(source), reading)
    if is_dataset(source):
        return _open_dataset((source, collate_fn or default), reading)
    if collate_fn is not None:
        raise ValueError("collate_fn is for a Dataset's samples; transform= takes a tree's batches")
    columns = column_source(source)
    is_single = reading.is_unbatched and not reading.asks_for_lists
    return _without_batches(columns) if is_single else columns


def count_samples(source: BatchSource | IterableSource) -> int | None:
    """The number of samples; None if an iterable does not say."""
    return source.num_samples if isinstance(source, IterableSource) else len(source)


def _columns_of_samples(source: Any, reading: Reading) -> Any:
    """The columns of a Dataset, if their batches are the batches of its samples; else None."""
    if reading.collate_fn is not None or reading.asks_for_lists:
        return None
    if type(source) is TensorDataset:
        # A list, as default_collate makes of tuples: a tuple would be delivered as a tuple.
        return list(source.tensors)
    if reading.is_unbatched:
        return None
    images = recognise_images(source) if reading.is_native else None
    return images or columns_of_hf_dataset(source)


def _open_ragged(tree: RaggedTree, reading: Reading) -> DatasetSource:
    """Batches of a ragged tree, or its samples for a collate_fn."""
    parts = tree, reading.collate_fn or default_convert
    makes_batches = reading.collate_fn is None and not reading.is_unbatched
    asks_for_lists = makes_batches or reading.asks_for_lists
    return DatasetSource(*parts, reading.is_unbatched, share(parts), True, asks_for_lists)


def _open_dataset(parts: tuple[Any, CollateFn], reading: Reading) -> DatasetSource:
    # Items of a list are only referred to: the code of a Dataset may be running in several threads.
    is_shared = reading.is_thread_safe or isinstance(parts[0], ListedSamples)
    opened = share(parts) if is_shared else take_turns(parts)
    return DatasetSource(*parts, reading.is_unbatched, opened, is_shared, reading.asks_for_lists)


def _without_batches(source: ColumnSource) -> ColumnSource:
    """The source with its samples one by one, without a batch dimension; batches are of size 1."""
    unflatten = source.unflatten or _first
    return replace(source, unflatten=lambda leaves: unflatten([leaf[0] for leaf in leaves]))


def _first(leaves: Sequence[torch.Tensor]) -> Tree:
    return leaves[0]
