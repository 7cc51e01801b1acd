"""`loader=batch_sampler`: torch's DataLoader whose sampler yields a batch's indices as a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.plans import DATALOADER, IndexBatches, honours_only
from fastloop.protocols import Store
from fastloop.rows import memory_rows
from fastloop.torch_loader import as_fetched, torch_epochs
from fastloop.types import Epochs, Plan, Prepared, option


@option
class BatchSampler:
    """`batch_size=None`, so that no index becomes a Python int: what pytorch#4959 asked for."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from rows that are read into memory first."""
        honours_only("batch_sampler", plan, *self.honours)
        rows = memory_rows(self.store.open(prepared.folder))
        with torch_epochs(rows, plan, as_fetched, IndexBatches(plan, len(rows))) as epochs:
            yield epochs
