"""How many classes the labels of a dataset name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

from fastloop.trees import tree_leaves
from fastloop.types import Tree

MOST_CLASSES = 100_000
"""Larger labels are no classes: a network would have as many outputs."""


class Classes:
    """The largest label + 1 in the batches that came."""

    def __init__(self) -> None:
        self._lowest, self._seen = 0, 0

    def look_at(self, batch: Tree) -> None:
        """Take a batch's labels into account: int64 of one dimension, the last of two leaves, or
        either of two that have names."""
        leaves = tree_leaves(batch)
        if len(leaves) != 2:
            return
        last = leaves[1:] if isinstance(batch, tuple | list) else leaves[::-1]
        for labels in [one for one in last if _are_labels(one)][:1]:
            low, high = map(int, labels.aminmax())
            self._lowest, self._seen = min(self._lowest, low), max(self._seen, high + 1)

    @property
    def count(self) -> int | None:
        """None where there are no labels, or some that are below 0: these are no classes."""
        return self._seen if self._lowest == 0 and 0 < self._seen <= MOST_CLASSES else None


@dataclass(frozen=True)
class Looked:
    """The same batches, each looked at on its way."""

    batches: Iterable[Tree]
    look_at: Callable[[Tree], None]

    def __len__(self) -> int:
        return len(self.batches)  # pyright: ignore[reportArgumentType] - its TypeError tells as much

    def __iter__(self) -> Iterator[Tree]:
        for batch in self.batches:
            self.look_at(batch)
            yield batch


def _are_labels(leaf: object) -> bool:
    is_tensor = isinstance(leaf, torch.Tensor)
    return is_tensor and leaf.dtype == torch.int64 and leaf.ndim == 1 and len(leaf) > 0
