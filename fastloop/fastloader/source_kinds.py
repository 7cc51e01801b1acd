"""Kinds of sources: a tree of columns, a map-style Dataset, a list of samples, or a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.column_list import ColumnList
from fastloop.fastloader.columns.chunked_rows import is_library_array
from fastloop.fastloader.columns.column import Column
from fastloop.fastloader.columns.ragged_rows import RaggedRows
from fastloop.fastloader.table_columns import columns_of_table

ARRAYS = torch.Tensor | np.ndarray
MOST_CHECKED = 64
"""Items of a list that are looked at: it may hold millions."""


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
    """Raise ValueError for a list of items that default_collate can't be meant to collate: columns
    or Datasets."""
    if type(source) is not list:
        return
    for item in source[:MOST_CHECKED]:
        if isinstance(item, Column | RaggedRows) or is_library_array(item):
            problem = f"a list is a Dataset of samples, and {type(item).__name__} is a column"
            raise ValueError(f"{problem}: tuple(source) means columns")
        if isinstance(item, torch.utils.data.Dataset):
            problem = f"a list is a Dataset of samples, and {type(item).__name__} is a Dataset"
            raise ValueError(f"{problem}: torch's ConcatDataset or StackDataset joins several")


def is_dataset(source: Any) -> bool:
    """True for something with samples by index that is no tree of columns."""
    if isinstance(source, ARRAYS | Column | RaggedRows | str | bytes) or is_library_array(source):
        return False
    is_leaf = pytree.tree_structure(source).is_leaf()
    return is_leaf and hasattr(source, "__getitem__") and hasattr(source, "__len__")


class ListedSamples(torch.utils.data.Dataset):
    """The samples of a list, which can be read by any number of threads."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def _is_mapping(source: Any) -> bool:
    """True for arrays by name that are no dict, such as an h5py.File, a zarr group or an open .npz
    file."""
    is_leaf = pytree.tree_structure(source).is_leaf()
    is_dataset_itself = isinstance(source, torch.utils.data.Dataset)
    # A Dataset of the user may have keys() as well: it is read by index.
    has_keys = callable(getattr(source, "keys", None)) and hasattr(source, "__getitem__")
    return is_leaf and has_keys and not is_dataset_itself
