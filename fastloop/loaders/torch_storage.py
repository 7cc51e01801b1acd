"""`loader=torch_storage`: torch's DataLoader over memory-mapped torch storages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar

from fastloop.plans import DATALOADER, IndexBatches, honours_only
from fastloop.protocols import Store
from fastloop.rows import Rows, tensors_of
from fastloop.torch_loader import as_fetched, torch_epochs
from fastloop.types import Epochs, Plan, Prepared, Tree, option


@option
class TorchStorage:
    """Mapped tensors, indexed once a leaf and batch by a sampler's index tensor."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches gathered from the maps; every worker maps the files itself."""
        honours_only("torch_storage", plan, *self.honours)
        rows = Rows(partial(_mapped, self.store, prepared.folder))
        with torch_epochs(rows, plan, as_fetched, IndexBatches(plan, len(rows))) as epochs:
            yield epochs


def _mapped(store: Store, folder: Path) -> Tree:
    return tensors_of(store.open(folder))
