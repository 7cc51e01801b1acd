"""`loader=batch_sampler`: torch's DataLoader with a sampler that yields index tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.core.index_batches import IndexBatches
from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, option
from fastloop.data.rows import in_memory_rows
from fastloop.data.torch_epochs import identity_collate, torch_epochs


@option
class BatchSamplerLoader:
    """DataLoader over tensors in memory; its sampler yields the indices of a batch as a tensor.

    DataLoader itself forms no batches (`batch_size=None`), so that no index is converted to a
    Python int. pytorch#4959 proposes this.
    """

    store: Store
    """The store with the rows."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the rows are read into memory first."""
        rows = in_memory_rows(self.store.open(prepared.folder))
        with torch_epochs(rows, plan, identity_collate, IndexBatches(plan, len(rows))) as epochs:
            yield epochs
