"""Read the source of a store of encoded images: the columns of image files and labels that a user
passes to write_store with `images`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.data.npy_store import ALTERNATIVE, FORMAT_NAME
from fastloop.data.store_leaves import array_of
from fastloop.fastloader.columns.encoded_images import EncodedImages, open_images
from fastloop.fastloader.columns.ragged_rows import RaggedRows

ALLOWED = "lists of paths or of bytes, with tensors, arrays or lists of numbers beside them"
"""The allowed columns, for messages."""


@dataclass(frozen=True)
class EncodedSource:
    """The leaves of a tree of columns of one length: encoded images, and arrays."""

    leaves: Sequence[EncodedImages | np.ndarray]
    structure: pytree.TreeSpec

    def __len__(self) -> int:
        return len(self.leaves[0])


def read_encoded_source(source: Any) -> EncodedSource:
    """The columns of a tree, or the files and classes of torchvision's ImageFolder.

    Raises ValueError if there are no images, other leaves, or columns of several lengths.
    """
    leaves, structure = pytree.tree_flatten(_columns_of(source), is_leaf=_is_column)
    columns = [_open_column(leaf) for leaf in leaves]
    if all(isinstance(column, np.ndarray) for column in columns):
        raise ValueError(f"images= stores encoded images: allowed are {ALLOWED}")
    lengths = sorted({len(column) for column in columns})
    if len(lengths) > 1:
        raise ValueError(f"images= stores columns of one length, got {lengths}")
    return EncodedSource(columns, structure)


def _columns_of(source: Any) -> Any:
    # torchvision's ImageFolder has a list of (path, class).
    samples = getattr(source, "samples", None)
    if isinstance(samples, list):
        paths, classes = zip(*samples, strict=True)
        return list(paths), torch.tensor(classes)
    return source


def _is_column(node: Any) -> bool:
    """True for a list of paths, of bytes or of numbers: the list is one column, not a tree of
    columns."""
    # Only the first element is examined, because the list may have millions of them.
    is_tree_of = dict, list, tuple, torch.Tensor, np.ndarray, RaggedRows
    return isinstance(node, list) and bool(node) and not isinstance(node[0], is_tree_of)


def _open_column(leaf: Any) -> EncodedImages | np.ndarray:
    if isinstance(leaf, torch.Tensor):
        return array_of(leaf, FORMAT_NAME, ALTERNATIVE)
    if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufc":
        return leaf
    if isinstance(leaf, RaggedRows):
        return open_images(leaf)
    if not isinstance(leaf, list):
        raise ValueError(f"images= stores no {type(leaf).__name__}: allowed are {ALLOWED}")
    if isinstance(leaf[0], str | os.PathLike | bytes | bytearray | memoryview):
        return open_images(leaf)
    return _open_column(np.asarray(leaf))
