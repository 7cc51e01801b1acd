"""`loader=index_loop`: a loop over slices of a permutation, without a DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.core.index_batches import index_batches
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, option
from fastloop.data.rows import in_memory_rows


@option
class IndexLoop:
    """A loop without a DataLoader: a permutation is cut into batches, and one index_select per leaf
    gathers a batch.

    index_select returns the same as `tensor[indices]` and is faster.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()
    has_even_shares: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the rows are read into memory first, and nothing is prefetched."""
        rows = in_memory_rows(self.store.open(prepared.folder))
        yield lambda epoch: map(rows.__getitem__, index_batches(plan, len(rows), epoch))
