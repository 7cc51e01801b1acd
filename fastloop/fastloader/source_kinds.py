"""Kinds of sources: a tree of columns, a map-style Dataset, a list of samples, or a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns.chunked_rows import is_library_array
from fastloop.fastloader.columns.column import Column
from fastloop.fastloader.columns.ragged_rows import RaggedRows
from fastloop.fastloader.tables import columns_of_table

MOST_COLUMNS = 64
"""A list of more equal tensors is one of samples whose author did not want columns."""
ARRAYS = torch.Tensor | np.ndarray
VALUES = (int, float, complex, str, bytes, type(None))
"""Leaves that a tree of columns never has."""


def read_source(source: Any) -> Any:
    """The source as a tree of columns or as something with samples by index.

    Tables and mappings become the dict of their columns, and a list that holds samples a Dataset,
    as DataLoader reads any list. Raises ValueError for sources that may be either, or neither.
    """
    table = columns_of_table(source)
    if table is not None:
        return table
    if _is_mapping(source):
        return {name: source[name] for name in source.keys()}  # noqa: SIM118 - of zarr's group
    if type(source) is list and _are_samples(source):
        return ListedSamples(source)
    if type(source) is list and len(source) > MOST_COLUMNS:
        _check_columns(source)
    return source


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


def _are_samples(source: list[Any]) -> bool:
    """True for a list of tuples, of numbers or texts, or of dicts that are no dicts of columns.

    A tree of columns has tuples nowhere inside of lists: a collated batch, and so a store, has
    lists in their place.
    """
    if source and all(isinstance(leaf, VALUES) for leaf in pytree.tree_leaves(source)):
        return True
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


def _is_mapping(source: Any) -> bool:
    """True for arrays by name that are no dict, such as an h5py.File, a zarr group or an open .npz
    file."""
    is_leaf = pytree.tree_structure(source).is_leaf()
    is_dataset_itself = isinstance(source, torch.utils.data.Dataset)
    has_keys = callable(getattr(source, "keys", None)) and hasattr(source, "__getitem__")
    return is_leaf and has_keys and not is_dataset_itself
