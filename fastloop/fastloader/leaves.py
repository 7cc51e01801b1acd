"""A tree of arrays as rows of bytes: all that gathering needs to know, whatever the dtype."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

Tree = Any


@dataclass(frozen=True)
class Leaf:
    """One tensor of a source: its rows as bytes, and what they are."""

    rows: np.ndarray
    """(num_samples, row_nbytes) uint8, a view of the source's own memory."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Of a sample."""

    def seen(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, row_nbytes) uint8 as (n, *shape) of the dtype, the same memory."""
        if not rows.shape[1]:  # which no dtype divides
            return torch.empty((len(rows), *self.shape), dtype=self.dtype)
        return rows.view(self.dtype).view(len(rows), *self.shape)


def taken_apart(source: Tree) -> tuple[list[Leaf], Callable[[Sequence[Any]], Tree] | None]:
    """The leaves of a source, and what makes a tree like it of others; None for a tensor alone.

    Raises ValueError for a source without tensors or arrays, or with other lengths.
    """
    found, structure = pytree.tree_flatten(source)
    leaves = [_leaf(one) for one in found]
    lengths = {len(leaf.rows) for leaf in leaves}
    if len(lengths) != 1:
        told = sorted(lengths) or "no tensors or arrays"
        raise ValueError(f"a source is a tree of tensors or arrays of one length, got {told}")
    if type(source) is tuple and len(source) == len(found):
        return leaves, tuple
    if structure.is_leaf():
        return leaves, None
    return leaves, lambda made: pytree.tree_unflatten(made, structure)


def _tensor(one: torch.Tensor | np.ndarray) -> torch.Tensor:
    if isinstance(one, torch.Tensor):
        return one
    with warnings.catch_warnings():  # nobody writes to the source, whatever map it lies behind
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        return torch.from_numpy(one)


def _leaf(one: Any) -> Leaf:
    if not isinstance(one, torch.Tensor | np.ndarray):
        raise ValueError(f"a source is made of tensors or arrays, got {type(one).__name__}")
    tensor = _tensor(one)
    if tensor.dim() == 0 or tensor.device.type != "cpu":
        raise ValueError(f"a source has samples in its first dimension, on the CPU, got {tensor}")
    tensor = tensor.detach().contiguous()
    nbytes = tensor.itemsize * int(np.prod(tensor.shape[1:]))
    if nbytes:
        rows = tensor.view(len(tensor), -1).view(torch.uint8).numpy()
    else:
        rows = np.zeros((len(tensor), 0), np.uint8)
    return Leaf(rows, tensor.dtype, tuple(tensor.shape[1:]))
