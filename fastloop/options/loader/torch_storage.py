"""`loader=torch_storage`: torch's DataLoader over memory-mapped torch storages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

from fastloop.core.index_batches import IndexBatches
from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, option
from fastloop.data.rows import Rows, tensors_of
from fastloop.data.torch_epochs import identity_collate, torch_epochs


@option
class TorchStorageLoader:
    """DataLoader over memory-mapped tensors, each indexed once per batch by an index tensor."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; every worker maps the files itself."""
        rows = Rows(partial(_map_rows, self.store, prepared.folder))
        with torch_epochs(rows, plan, identity_collate, IndexBatches(plan, len(rows))) as epochs:
            yield epochs


def _map_rows(store: Store, folder: Path) -> Tree:
    return tensors_of(store.open(folder))
