"""`loader=np_memmap`: torch's DataLoader over numpy memory maps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

from fastloop.plans import DATALOADER, honours_only
from fastloop.protocols import Store
from fastloop.rows import Rows
from fastloop.torch_loader import torch_epochs
from fastloop.types import Epochs, Plan, Prepared, option


@option
class NpMemmap:
    """One row (`from_numpy`) and its target an `__getitem__`, default collate."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = (*DATALOADER, "transform")

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches copied out of the maps; every worker maps the files itself."""
        honours_only("np_memmap", plan, *self.honours)
        with torch_epochs(Rows(partial(self.store.open, prepared.folder)), plan) as epochs:
            yield epochs
