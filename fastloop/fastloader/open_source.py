"""The source of batches that is made of a user's argument to FastLoader.

The argument is a tree of columns, a map-style Dataset, a list of samples, a table or an iterable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import (
    Dataset,
    IterableDataset,
    TensorDataset,
    default_collate,
    default_convert,
)

from fastloop.fastloader.column_source import ColumnSource, column_source
from fastloop.fastloader.columns.chunked_rows import is_library_array
from fastloop.fastloader.columns.column import Column, ColumnList, Tree
from fastloop.fastloader.columns.ragged_rows import RaggedRows, RaggedTree, is_ragged_tree
from fastloop.fastloader.dataset_source import (
    BatchSource,
    CollateFn,
    DatasetSource,
    Parts,
    share,
    take_turns,
)
from fastloop.fastloader.iterable_source import IterableSource
from fastloop.fastloader.loader_settings import LoaderSettings
from fastloop.fastloader.recognised_images import recognise_images
from fastloop.fastloader.table_columns import columns_of_hf_dataset, columns_of_table

ARRAYS = torch.Tensor | np.ndarray
MOST_CHECKED = 64
"""Items of a list that are looked at: it may hold millions."""


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


class ListedSamples(Dataset):
    """The samples of a list, which can be read by any number of threads."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


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
        return IterableSource(source, collate_fn or default, settings.workers)
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
    parts = Parts(tree, collate_fn)
    return DatasetSource(
        parts,
        settings.is_unbatched,
        share(parts),
        is_thread_safe=True,
        reads_lists=makes_batches or settings.asks_for_lists,
    )


def _open_dataset(dataset: Any, collate_fn: CollateFn, settings: LoaderSettings) -> DatasetSource:
    # Items of a list are only referred to: the code of a Dataset may be running in several threads.
    is_shared = settings.thread_safe or isinstance(dataset, ListedSamples)
    parts = Parts(dataset, collate_fn)
    return DatasetSource(
        parts,
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


def read_source(source: Any) -> Any:
    """The source as a tree of columns or as something with samples by index.

    Tables and mappings become the dict of their columns. A list becomes a Dataset, as DataLoader
    reads any list, and a ColumnList the list of its columns.
    """
    table = columns_of_table(source)
    if table is not None:
        return table
    if _is_mapping(source):
        return {name: source[name] for name in source.keys()}  # noqa: SIM118 - of zarr's group
    if type(source) is list:
        return ListedSamples(source)
    return list(source) if type(source) is ColumnList else source


def check_samples(source: Any) -> None:
    """Raise ValueError for a list of columns or of Datasets: nobody can mean default_collate to
    collate these."""
    if type(source) is not list:
        return
    for item in source[:MOST_CHECKED]:
        if isinstance(item, Column | RaggedRows) or is_library_array(item):
            problem = f"a list is a Dataset of samples, and {type(item).__name__} is a column"
            raise ValueError(f"{problem}: tuple(source) means columns")
        if isinstance(item, Dataset):
            problem = f"a list is a Dataset of samples, and {type(item).__name__} is a Dataset"
            raise ValueError(f"{problem}: torch's ConcatDataset or StackDataset joins several")


def is_dataset(source: Any) -> bool:
    """True for something with samples by index that is no tree of columns."""
    if isinstance(source, ARRAYS | Column | RaggedRows | str | bytes) or is_library_array(source):
        return False
    is_leaf = pytree.tree_structure(source).is_leaf()
    return is_leaf and hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _is_mapping(source: Any) -> bool:
    """True for arrays by name that are no dict, such as an h5py.File, a zarr group or an open .npz
    file."""
    is_leaf = pytree.tree_structure(source).is_leaf()
    is_dataset_itself = isinstance(source, Dataset)
    # A Dataset of the user may have keys() as well: it is read by index.
    has_keys = callable(getattr(source, "keys", None)) and hasattr(source, "__getitem__")
    return is_leaf and has_keys and not is_dataset_itself
