"""`loader=tensorclass`: torch's DataLoader over a tensorclass in memory, indexed once per batch."""

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
class TensorClassLoader:
    """DataLoader over a tensorclass, a tensordict class with tensors as fields, in memory.

    The Dataset's `__getitems__` indexes each field once per batch, so nothing is left to collate.
    """

    store: Store
    """The store to read, which has to contain a tensorclass."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; all rows are read into memory first.

        Raises Unsupported if the store does not contain a tensorclass.
        """
        rows = check_tensorclass(self.store.open(prepared.folder)).clone()
        with tensorclass_epochs(rows, plan) as epochs:
            yield epochs
