"""The columns of a tree of tensors, arrays and columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.fastloader.columns.array import array_column
from fastloop.fastloader.columns.chunked_rows import is_library_array, library_array
from fastloop.fastloader.columns.column import Column, Tree
from fastloop.fastloader.source import ColumnSource


def column_source(tree: Tree) -> ColumnSource:
    """Make a source of a tree of tensors, arrays and columns.

    Raises ValueError for a tree without leaves, with leaves of other types or of different lengths.
    """
    leaves, structure = pytree.tree_flatten(tree)
    _check_byte_order(tree)
    columns = [_as_column(leaf) for leaf in leaves]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        actual = sorted(lengths) or "no tensors or arrays"
        raise ValueError(f"a source is a tree of tensors or arrays of one length, got {actual}")
    # The most frequent structures need no function of Python for each batch, see stream_batches.c.
    if type(tree) is tuple and _are_leaves(tree, leaves):
        return ColumnSource(columns, tuple)
    if structure.is_leaf():
        return ColumnSource(columns, None)
    return ColumnSource(columns, lambda leaves: pytree.tree_unflatten(leaves, structure))


def _check_byte_order(tree: Tree) -> None:
    """Raise ValueError for an array of numbers in the other byte order, which torch does not
    read."""
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
            problem = f"dataset{pytree.keystr(path)} has the byte order of dtype {leaf.dtype.str!r}"
            raise ValueError(f"{problem}: astype({leaf.dtype.name!r}) has this machine's")


def _are_leaves(tree: tuple, leaves: list[Any]) -> bool:
    """True for a flat tuple. A tuple of items that hold one leaf each has as many items as leaves,
    too.
    """
    pairs = zip(tree, leaves, strict=False)
    return len(tree) == len(leaves) and all(item is leaf for item, leaf in pairs)


def _as_column(leaf: Any) -> Column:
    if isinstance(leaf, torch.Tensor | np.ndarray):
        return array_column(leaf)
    if isinstance(leaf, Column):
        return leaf
    if is_library_array(leaf):
        return library_array(leaf)
    allowed = "a source is a Dataset (a list is one), or a tree of tensors, arrays and columns"
    problem = f"{allowed}; a leaf of type {type(leaf).__name__} is none of these"
    raise ValueError(f"{problem}{_advise(leaf)}")


def _advise(leaf: Any) -> str:
    if hasattr(leaf, "__getitem__") and hasattr(leaf, "__len__"):
        return ": pass one Dataset, or several by torch's ConcatDataset or StackDataset"
    if hasattr(leaf, "__iter__"):
        return ": a class derived from torch's IterableDataset may return it in __iter__"
    return ""
