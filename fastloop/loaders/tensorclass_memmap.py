"""`loader=tensorclass_memmap`: torch's DataLoader over a memory-mapped tensorclass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.plans import DATALOADER, honours_only
from fastloop.protocols import Store
from fastloop.torch_loader import IndexedOnce, indexed_as_one, pair_of, torch_epochs
from fastloop.types import Epochs, Plan, Prepared, option


@option
class TensorClassMemmap:
    """As `tensorclass`, over the files that `load_memmap` maps."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches gathered from the maps; a map travels to a worker by its file name."""
        honours_only("tensorclass_memmap", plan, *self.honours)
        rows = indexed_as_one(self.store.open(prepared.folder))
        with torch_epochs(IndexedOnce(rows), plan, collate_fn=pair_of) as epochs:
            yield epochs
