"""`loader=getitems`: torch's DataLoader with batched `__getitems__`, as seed 004 proposes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch

from fastloop.plans import DATALOADER, honours_only
from fastloop.protocols import Store
from fastloop.rows import Rows, memory_rows
from fastloop.torch_loader import as_fetched, torch_epochs
from fastloop.types import Epochs, Plan, Prepared, Tree, option


@dataclass(frozen=True)
class Batched:
    """Rows that a DataLoader asks for a batch at a time, by a list of its sampler's ints."""

    rows: Rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tree:
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> Tree:
        # Made a tensor here, once: every leaf would make its own of the list.
        return self.rows[torch.tensor(indices)]


@option
class GetItems:
    """One index operation a leaf for a whole batch, identity collate."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from rows that are read into memory first."""
        honours_only("getitems", plan, *self.honours)
        rows = Batched(memory_rows(self.store.open(prepared.folder)))
        with torch_epochs(rows, plan, as_fetched) as epochs:
            yield epochs
