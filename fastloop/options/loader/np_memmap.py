"""`loader=np_memmap`: torch's DataLoader over numpy memory maps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import CANONICAL_COLLATE, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, option
from fastloop.data.rows import Rows
from fastloop.data.torch_epochs import torch_epochs


@option
class NpMemmapLoader:
    """DataLoader over numpy memory maps: one row per `__getitem__`, default collate."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = (*DATALOADER, "transform", CANONICAL_COLLATE)
    has_even_shares: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; every worker maps the files itself."""
        with torch_epochs(Rows(partial(self.store.open, prepared.folder)), plan) as epochs:
            yield epochs
