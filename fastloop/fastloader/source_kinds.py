"""Kinds of sources: a tree of columns, a map-style Dataset, a list of samples, or a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset

from fastloop.fastloader.columns.column import Column

MOST_COLUMNS = 64
"""A list of more equal tensors is one of samples whose author did not want columns."""
ARRAYS = torch.Tensor | np.ndarray


def read_source(source: Any) -> Any:
    """The source as a tree of columns or as something with samples by index.

    A pandas DataFrame becomes the dict of its columns, and a list of tuples or dicts a Dataset, as
    DataLoader reads any list. Raises ValueError for sources that may be either, or neither.
    """
    if isinstance(source, IterableDataset):
        reason = "it has no indices; fastloop.write_store makes a store of it"
        raise ValueError(f"a source has samples by index, got {type(source).__name__}: {reason}")
    if hasattr(source, "iloc") and hasattr(source, "to_numpy"):  # pandas is not imported for this
        return _columns_of_table(source)
    if type(source) is list and _are_samples(source):
        return ListedSamples(source)
    if type(source) is list and len(source) > MOST_COLUMNS:
        _check_columns(source)
    return source


def is_dataset(source: Any) -> bool:
    """True for something with samples by index that is no tree of columns."""
    if isinstance(source, ARRAYS | Column | str | bytes):
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


def _are_samples(source: list[Any]) -> bool:
    """True for a list of tuples, or of dicts that are no dicts of columns.

    A sample is a tuple or a dict. A tree of columns has tuples nowhere inside of lists: a collated
    batch, and so a store, has lists in their place.
    """
    if source and all(isinstance(item, tuple) for item in source):
        return True
    if not source or not all(isinstance(item, dict) for item in source):
        return False
    leaves = pytree.tree_leaves(source)
    are_arrays = all(isinstance(leaf, ARRAYS | Column) for leaf in leaves)
    if not are_arrays or len(source) > MOST_COLUMNS:
        return True
    lengths = {len(leaf) if getattr(leaf, "ndim", 1) else -1 for leaf in leaves}
    return len(lengths) != 1 or -1 in lengths


def _check_columns(source: list[Any]) -> None:
    """Raise ValueError for a list of many tensors of one shape."""
    shapes = {tuple(item.shape) if isinstance(item, ARRAYS) else None for item in source}
    if len(shapes) == 1 and None not in shapes:
        problem = f"a list of {len(source):,} tensors or arrays of shape {next(iter(shapes))}"
        allowed = "torch.stack(source) makes rows of samples, and tuple(source) means columns"
        raise ValueError(f"{problem} may be samples or columns: {allowed}")


def _columns_of_table(table: Any) -> Any:
    """A dict of a DataFrame's columns by name, or the values of a Series."""
    columns = table.items() if hasattr(table, "columns") else [(table.name, table)]
    arrays = {str(name): column.to_numpy() for name, column in columns}
    for name, values in arrays.items():
        if values.dtype.kind not in "buif":
            allowed = "a DataFrame is read by columns of numbers or booleans; encode or drop it"
            raise ValueError(f"the column {name!r} has values of type {values.dtype}: {allowed}")
    return arrays if hasattr(table, "columns") else next(iter(arrays.values()))
