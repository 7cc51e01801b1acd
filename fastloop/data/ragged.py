"""Batches of samples that differ in length, such as texts.

The first dimension of each leaf may differ between samples. The same-data gate concatenates such
leaves to a RaggedTensor; padding replaces each by (padded, lengths). ragged_npy_store.py stores
such leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree
import torch
from torch.utils.data import default_collate

from fastloop.core.protocols import Dataset, RaggedDataset
from fastloop.core.types import Invalid, Leaves, LengthsDiffer, SamplesDiffer, Tree

VARIES = -1
"""Placeholder in a shape for a first dimension that differs between samples."""

LISTS_OF_NUMBERS = "a list of numbers is as many leaves; torch.tensor(list) is one"
"""The remedy for lists of numbers, such as a tokenizer returns."""
STORES_RAGGED = "ragged=True stores them with offsets"
"""The remedy for samples of several lengths that `write_store` refuses."""


@dataclass(frozen=True)
class RaggedTensor:
    """A leaf of several samples, concatenated, with the shape (batch, VARIES, …)."""

    values: torch.Tensor
    """Concatenated values, (sum of lengths, …)."""
    lengths: torch.Tensor
    """Length of each sample's leaf, int64 (batch,)."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def dtype(self) -> torch.dtype:
        """dtype of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions, including the batch dimension."""
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
    """True if the dataset declares that its samples differ in length."""
    # The attribute is None if it is not known yet.
    return isinstance(dataset, RaggedDataset) and bool(dataset.ragged)


def shapes_to_pad(leaves: Leaves) -> Leaves:
    """The leaves with VARIES as the first dimension of each, as if samples differed in length."""
    return tuple((dtype, (VARIES, *shape[1:]) if shape else ()) for dtype, shape in leaves)


def difference_error(message: str, kinds: Iterable[tuple[Any, Leaves]]) -> SamplesDiffer:
    """The error for samples of several kinds: a LengthsDiffer if they could be padded.

    kinds: the tree of each sample, and the dtype and shape of its leaves.
    """
    (tree, leaves), *others = kinds
    could_be_padded = all(
        other == tree and shapes_to_pad(other_leaves) == shapes_to_pad(leaves)
        for other, other_leaves in others
    )
    return LengthsDiffer(message) if could_be_padded else SamplesDiffer(message)


def collate_by_leaf(samples: Sequence[Tree], collate: Callable[[list[torch.Tensor]], Any]) -> Tree:
    """Collate samples leaf by leaf: leaves with a dimension by `collate`, which gets a list of
    their tensors, and the others by torch's default_collate.

    Raises ValueError if trees differ.
    """
    flat = [optree.tree_flatten(sample) for sample in samples]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise ValueError("the samples are different trees")
    columns = zip(*(leaves for leaves, _ in flat), strict=True)
    return optree.tree_unflatten(
        structure, [_collate_column(list(column), collate) for column in columns]
    )


def collate_ragged(samples: Sequence[Tree]) -> Tree:
    """A batch in which each leaf that has a dimension is a RaggedTensor.

    Raises ValueError if trees or dtypes differ, or no leaf has a dimension.
    """
    batch = collate_by_leaf(samples, _join)
    if not any(isinstance(leaf, RaggedTensor) for leaf in optree.tree_leaves(batch)):
        raise ValueError(f"no leaf of the samples has a dimension; {LISTS_OF_NUMBERS}")
    return batch


def remove_padding(batch: Tree, leaves: Iterable[tuple[str, tuple[int, ...]]]) -> Tree:
    """The list of the leaves of a batch, with a RaggedTensor for each that varies in its first
    dimension.

    The batch is returned unchanged if no leaf varies, or if its number of leaves is wrong.
    leaves: dtype and shape of each leaf of a sample. Raises Invalid if a leaf that varies is not
    (padded, lengths).
    """
    # Each leaf that varies has two leaves in the batch. If the number of leaves differs from that,
    # the batch is wrong, and the comparison of its leaves reports the error better.
    varying = [shape[:1] == (VARIES,) for _, shape in leaves]
    flat = optree.tree_leaves(batch)
    if not any(varying) or len(flat) != len(varying) + sum(varying):
        return batch
    remaining = iter(flat)
    return [
        _without_padding(next(remaining), next(remaining)) if varies else next(remaining)
        for varies in varying
    ]


def longest_lengths(batch: Tree) -> np.ndarray:
    """Length of each sample's longest leaf in a batch with RaggedTensor leaves: (batch,) int64."""
    leaves = [leaf for leaf in optree.tree_leaves(batch) if isinstance(leaf, RaggedTensor)]
    return torch.stack([leaf.lengths for leaf in leaves]).amax(dim=0).numpy()


def _collate_column(column: list[Any], collate: Callable[[list[torch.Tensor]], Any]) -> Any:
    if not getattr(column[0], "ndim", 0):
        return default_collate(column)
    return collate([torch.as_tensor(leaf) for leaf in column])


def _join(tensors: list[torch.Tensor]) -> RaggedTensor:
    # torch.cat would convert other dtypes silently.
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError("the samples have different dtypes")
    return RaggedTensor(torch.cat(tensors), torch.tensor([len(tensor) for tensor in tensors]))


def _without_padding(padded: Any, lengths: Any) -> RaggedTensor:
    tensors = isinstance(padded, torch.Tensor) and isinstance(lengths, torch.Tensor)
    if not tensors or lengths.dtype != torch.int64 or padded.shape[:1] != lengths.shape:
        raise Invalid("a leaf of variable length must be (padded, int64 lengths)")
    if padded.ndim < 2:
        raise Invalid("a leaf of variable length has no dimension to pad")
    padded, lengths = padded.detach().cpu(), lengths.cpu()
    low, high = int(lengths.min()), int(lengths.max())
    width = padded.shape[1]
    if low < 0 or high > width:
        raise Invalid(f"the lengths of a batch are {low} to {high}, but it is padded to {width}")
    return RaggedTensor(padded[torch.arange(width) < lengths[:, None]], lengths)
