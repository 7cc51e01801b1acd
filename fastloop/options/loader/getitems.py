"""`loader=getitems`: torch's DataLoader over a dataset with a batched `__getitems__`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, option
from fastloop.data.rows import Rows, in_memory_rows
from fastloop.data.torch_epochs import identity_collate, torch_epochs


@dataclass(frozen=True)
class BatchedRows:
    """A dataset of rows, from which DataLoader fetches a whole batch by a list of indices."""

    rows: Rows
    """The rows in memory; a tensor of indices selects a batch."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tree:
        return self.rows[index]

    def __getitems__(self, indices: list[int]) -> Tree:
        # The list is converted once; otherwise each leaf would convert it again.
        return self.rows[torch.tensor(indices)]


@option
class GetItemsLoader:
    """DataLoader over tensors in memory; `__getitems__` indexes each leaf once per batch."""

    store: Store
    """The store with the rows."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the rows are read into memory first."""
        rows = BatchedRows(in_memory_rows(self.store.open(prepared.folder)))
        with torch_epochs(rows, plan, identity_collate) as epochs:
            yield epochs
