"""Count the classes of a dataset by its labels, and choose between this count and the number that
the dataset declares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from fastloop.core.protocols import Dataset
from fastloop.core.trees import tree_leaves
from fastloop.core.types import BadData, Tree

MOST_CLASSES = 100_000
"""Labels that would give more classes than this are not classes: a network would need an output
for each."""


class ClassCounter:
    """Counts the classes in all batches: the largest label + 1."""

    def __init__(self) -> None:
        self._lowest = 0
        self._count = 0

    def update(self, batch: Tree) -> None:
        """Include the labels of a batch, if it has two leaves and one of these holds labels."""
        # Labels are int64 and have one dimension. In a tuple the first leaf is the input, so only
        # the second leaf can be the labels. optree sorts the names of a dict, so either of its
        # leaves can be the labels; the last one is tried first.
        leaves = tree_leaves(batch)
        if len(leaves) != 2:
            return
        candidates = leaves[1:] if isinstance(batch, tuple | list) else leaves[::-1]
        labels = next(filter(_are_labels, candidates), None)
        if labels is None:
            return
        low, high = map(int, labels.aminmax())
        self._lowest = min(self._lowest, low)
        self._count = max(self._count, high + 1)

    @property
    def count(self) -> int | None:
        """Number of classes; None without labels, with negative ones, or above MOST_CLASSES."""
        return self._count if self._lowest == 0 and 0 < self._count <= MOST_CLASSES else None


@dataclass(frozen=True)
class LabelledBatches:
    """Batches, each of which is counted by a ClassCounter before it is yielded."""

    batches: Iterable[Tree]
    classes: ClassCounter

    def __len__(self) -> int:
        return len(self.batches)  # pyright: ignore[reportArgumentType] - a TypeError is intended

    def __iter__(self) -> Iterator[Tree]:
        for batch in self.batches:
            self.classes.update(batch)
            yield batch


def resolve_num_classes(by_dataset: int | None, by_labels: int | None) -> int | None:
    """The number of classes: the number that the dataset declares or, if this is 0, the number that
    follows from its labels."""
    return by_labels if by_dataset == 0 else by_dataset


def check_num_classes(dataset: Dataset, by_labels: int | None) -> None:
    """Raise BadData if the dataset declares fewer classes than its labels have."""
    declared = dataset.num_classes
    if declared and by_labels and by_labels > declared:
        reason = f"its labels go up to {by_labels - 1}, and it has {declared} classes"
        raise BadData(f"{dataset.label}: {reason} (num_classes)")


def _are_labels(leaf: object) -> bool:
    """True for a leaf that may be the labels of a batch: int64, with one dimension, not empty."""
    is_tensor = isinstance(leaf, torch.Tensor)
    return is_tensor and leaf.dtype == torch.int64 and leaf.ndim == 1 and len(leaf) > 0
