"""`loader=dataloader`: torch's DataLoader over tensors in memory, as over a TensorDataset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import CANONICAL_COLLATE, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, option
from fastloop.data.rows import in_memory_rows
from fastloop.data.torch_epochs import torch_epochs


@option
class TorchDataLoader:
    """DataLoader over tensors in memory: one row per `__getitem__`, and torch's default collate."""

    store: Store
    """The store with the rows."""
    honours: ClassVar[tuple[str, ...]] = (*DATALOADER, "transform", CANONICAL_COLLATE)
    has_even_shares: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the rows are read into memory first."""
        with torch_epochs(in_memory_rows(self.store.open(prepared.folder)), plan) as epochs:
            yield epochs
