"""`loader=tensorclass_memmap`: torch's DataLoader over a memory-mapped tensorclass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, option
from fastloop.options.loader._tensorclass_rows import check_tensorclass, tensorclass_epochs


@option
class TensorClassMemmapLoader:
    """DataLoader over a tensorclass mapped by `load_memmap`; each field is indexed once per
    batch."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; workers receive the file name of each memory map, not its content."""
        rows = check_tensorclass(self.store.open(prepared.folder))
        with tensorclass_epochs(rows, plan) as epochs:
            yield epochs
