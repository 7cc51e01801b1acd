"""`loader=tensorclass`: torch's DataLoader over a tensorclass in memory, indexed once a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.plans import DATALOADER, honours_only
from fastloop.protocols import Store
from fastloop.torch_loader import IndexedOnce, indexed_as_one, pair_of, torch_epochs
from fastloop.types import Epochs, Plan, Prepared, option


@option
class TensorClass:
    """`__getitems__` gathers a batch in one operation a field; nothing is left to collate."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from rows that are read into memory first."""
        honours_only("tensorclass", plan, *self.honours)
        rows = indexed_as_one(self.store.open(prepared.folder)).clone()
        with torch_epochs(IndexedOnce(rows), plan, collate_fn=pair_of) as epochs:
            yield epochs
