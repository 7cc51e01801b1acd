"""`loader=dataloader`: torch's DataLoader over tensors in memory, as over a TensorDataset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.plans import DATALOADER, honours_only
from fastloop.protocols import Store
from fastloop.rows import memory_rows
from fastloop.torch_loader import torch_epochs
from fastloop.types import Epochs, Plan, Prepared, option


@option
class Dataloader:
    """One row of every tensor an `__getitem__`, default collate: the loop that seed 004 finds slow
    and seeds 001 and 002 tune."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = (*DATALOADER, "transform")

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from rows that are read into memory first."""
        honours_only("dataloader", plan, *self.honours)
        with torch_epochs(memory_rows(self.store.open(prepared.folder)), plan) as epochs:
            yield epochs
