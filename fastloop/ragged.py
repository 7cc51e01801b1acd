"""Samples that differ in length: their leaves end to end, as the same-data gate reads them.

Each leaf that has a dimension may differ in its first. Padding replaces it by (padded, lengths).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree
import torch
from torch.utils.data import default_collate

from fastloop.types import Dataset, Invalid, Ragged, Tree

VARIES = -1
"""Stands for the first dimension of such a leaf where shapes are told."""


@dataclass(frozen=True)
class Joined:
    """One leaf of several samples, end to end; told as a tensor of (batch, VARIES, …) would be."""

    values: torch.Tensor
    """(sum of the lengths, …)."""
    lengths: torch.Tensor
    """int64 (batch,)."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> torch.dtype:
        """That of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """Dimensions, that of the batch included."""
        return self.values.ndim + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """(batch, VARIES, …)."""
        return (len(self), VARIES, *self.values.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of values and lengths."""
        return self.values.nbytes + self.lengths.nbytes


def is_ragged(dataset: Dataset) -> bool:
    """True where the dataset says that its samples differ in length."""
    return isinstance(dataset, Ragged) and dataset.ragged


def by_leaf(samples: Sequence[Tree], make: Callable[[list[torch.Tensor]], Any]) -> Tree:
    """The samples' tree, of each leaf that has a dimension what `make` makes of all samples'.

    Other leaves are collated as torch's default_collate does. Raises ValueError where trees differ.
    """
    flat = [optree.tree_flatten(sample) for sample in samples]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise ValueError("the samples are different trees")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return optree.tree_unflatten(structure, [_made(list(column), make) for column in columns])


def joined(samples: Sequence[Tree]) -> Tree:
    """A batch with each leaf that has a dimension Joined.

    Raises ValueError where trees or dtypes differ, or no leaf has a dimension.
    """
    batch = by_leaf(samples, _join)
    if not any(isinstance(leaf, Joined) for leaf in optree.tree_leaves(batch)):
        raise ValueError("no leaf of the samples has a dimension")
    return batch


def unpadded(batch: Tree, leaves: Iterable[tuple[str, tuple[int, ...]]]) -> Tree:
    """The leaves of a batch, Joined where `leaves` tell that their first dimension varies.

    The batch as it is where none varies, and where it has another number of leaves. Raises Invalid
    where what should be (padded, lengths) is not.
    """
    varying = [shape[:1] == (VARIES,) for _, shape in leaves]
    flat = optree.tree_leaves(batch)
    if not any(varying) or len(flat) != len(varying) + sum(varying):
        return batch
    left = iter(flat)
    return [_without_padding(next(left), next(left)) if one else next(left) for one in varying]


def longest(batch: Tree) -> np.ndarray:
    """(batch,) int64: the length of each sample's longest leaf, of a batch with Joined leaves."""
    leaves = [leaf for leaf in optree.tree_leaves(batch) if isinstance(leaf, Joined)]
    return torch.stack([leaf.lengths for leaf in leaves]).amax(dim=0).numpy()


def _made(column: list[Any], make: Callable[[list[torch.Tensor]], Any]) -> Any:
    if not getattr(column[0], "ndim", 0):
        return default_collate(column)
    return make([torch.as_tensor(leaf) for leaf in column])


def _join(tensors: list[torch.Tensor]) -> Joined:
    if len({one.dtype for one in tensors}) > 1:  # torch.cat would convert them
        raise ValueError("the samples have different dtypes")
    return Joined(torch.cat(tensors), torch.tensor([len(one) for one in tensors]))


def _without_padding(padded: Any, lengths: Any) -> Joined:
    tensors = isinstance(padded, torch.Tensor) and isinstance(lengths, torch.Tensor)
    if not tensors or lengths.dtype != torch.int64 or padded.shape[:1] != lengths.shape:
        raise Invalid("for a leaf of variable length did not come (padded, int64 lengths)")
    if padded.ndim < 2:
        raise Invalid("a leaf of variable length came without a dimension to pad")
    padded, lengths = padded.detach().cpu(), lengths.cpu()
    low, high, width = int(lengths.min()), int(lengths.max()), padded.shape[1]
    if low < 0 or high > width:
        raise Invalid(f"the lengths of a batch are {low} to {high}, it is padded to {width}")
    return Joined(padded[torch.arange(width) < lengths[:, None]], lengths)
