"""`loader=index_loop`: seed 004's custom loader, without torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.plans import honours_only, index_batches
from fastloop.protocols import Store
from fastloop.rows import memory_rows
from fastloop.types import Epochs, Plan, Prepared, option


@option
class IndexLoop:
    """A permutation, cut into batches; once a leaf and batch index_select, which is what 004's
    `tensor[indices]` gives, and faster."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from rows that are read into memory first; nothing runs ahead."""
        honours_only("index_loop", plan, *self.honours)
        rows = memory_rows(self.store.open(prepared.folder))
        yield lambda epoch: map(rows.__getitem__, index_batches(plan, len(rows), epoch))
