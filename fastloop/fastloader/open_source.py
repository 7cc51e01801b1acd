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
from fastloop.fastloader.iterable_source import IterableSource
from fastloop.fastloader.loader_settings import LoaderSettings
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
from fastloop.fastloader.worker_processes import open_workers


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


def open_source(settings: LoaderSettings) -> BatchSource | IterableSource:
    """The batches, or the single samples, of a loader's tree of columns or Dataset.

    A TensorDataset is treated as its tensors, in batches that are lists, as default_collate makes
    them. Raises ValueError for anything else, and for a collate_fn if there is nothing to collate.
    """
    source, collate_fn = settings.source, settings.collate_fn
    default = default_convert if settings.is_unbatched else default_collate
    if isinstance(source, IterableDataset):
        return IterableSource(source, collate_fn or default, open_workers(settings))
    # A collate_fn of the user may take any items.
    if collate_fn is None:
        check_samples(source)
    source = _columns_of_samples(settings) or read_source(source)
    if is_ragged_tree(source):
        return _open_ragged(RaggedTree(source), settings)
    if is_dataset(source):
        return _open_dataset(source, collate_fn or default, settings)
    if collate_fn is not None:
        raise ValueError("collate_fn is for a Dataset's samples; transform= takes a tree's batches")
    columns = column_source(source)
    is_single = settings.is_unbatched and not settings.asks_for_lists
    return _without_batches(columns) if is_single else columns


def count_samples(source: BatchSource | IterableSource) -> int | None:
    """The number of samples; None if an iterable does not say."""
    return source.num_samples if isinstance(source, IterableSource) else len(source)


def _columns_of_samples(settings: LoaderSettings) -> Any:
    """The columns of a Dataset, if their batches are the batches of its samples; else None."""
    source = settings.source
    if settings.collate_fn is not None or settings.asks_for_lists:
        return None
    if type(source) is TensorDataset:
        # A list, as default_collate makes of tuples: a tuple would be delivered as a tuple.
        return list(source.tensors)
    if settings.is_unbatched:
        return None
    images = recognise_images(source) if settings.native else None
    return images or columns_of_hf_dataset(source)


def _open_ragged(tree: RaggedTree, settings: LoaderSettings) -> DatasetSource:
    """Batches of a ragged tree, or its samples for a collate_fn."""
    collate_fn = settings.collate_fn or default_convert
    makes_batches = settings.collate_fn is None and not settings.is_unbatched
    return DatasetSource(
        tree,
        collate_fn,
        settings.is_unbatched,
        share((tree, collate_fn)),
        is_thread_safe=True,
        reads_lists=makes_batches or settings.asks_for_lists,
    )


def _open_dataset(dataset: Any, collate_fn: CollateFn, settings: LoaderSettings) -> DatasetSource:
    # Items of a list are only referred to: the code of a Dataset may be running in several threads.
    is_shared = settings.thread_safe or isinstance(dataset, ListedSamples)
    parts = dataset, collate_fn
    return DatasetSource(
        dataset,
        collate_fn,
        settings.is_unbatched,
        share(parts) if is_shared else take_turns(parts),
        is_thread_safe=is_shared,
        reads_lists=settings.asks_for_lists,
    )


def _without_batches(source: ColumnSource) -> ColumnSource:
    """The source with its samples one by one, without a batch dimension; batches are of size 1."""
    unflatten = source.unflatten or _first
    return replace(source, unflatten=lambda leaves: unflatten([leaf[0] for leaf in leaves]))


def _first(leaves: Sequence[torch.Tensor]) -> Tree:
    return leaves[0]
