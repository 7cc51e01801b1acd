"""Epochs over the rows of a tensorclass, for loader=tensorclass and loader=tensorclass_memmap."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from fastloop.core.plan import Plan
from fastloop.core.types import Epochs, Tree, Unsupported
from fastloop.data.torch_epochs import torch_epochs


@dataclass(frozen=True)
class TensorClassRows:
    """A dataset that fetches the rows of a batch by one index operation (`__getitems__`)."""

    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tree:
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> Tree:
        return self.rows[indices]


def check_tensorclass(rows: Any) -> Any:
    """Return the rows; raises Unsupported for a tree, such as a tuple of arrays."""
    # Indexing a tensorclass indexes its leaves, but indexing a tuple or a dict does not. Only the
    # tensorclass has a method `clone`.
    if not hasattr(rows, "clone"):
        raise Unsupported("rows can't be indexed by batch: use store@loader.store=tensordict")
    return rows


def tensorclass_epochs(rows: Any, plan: Plan) -> AbstractContextManager[Epochs]:
    """Epochs of (data, targets) batches of a tensorclass, by a DataLoader."""
    return torch_epochs(TensorClassRows(rows), plan, collate_fn=_data_and_targets)


def _data_and_targets(batch: Any) -> Tree:
    return batch.data, batch.targets
