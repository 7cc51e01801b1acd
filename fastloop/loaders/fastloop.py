"""`loader=fastloop`: our own FastLoader, which whoever finds it fastest takes home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import ClassVar

from pydantic import PositiveInt

from fastloop.fastloader import FastLoader
from fastloop.plans import epoch_indices, honours_only
from fastloop.protocols import Store
from fastloop.rows import read_into_memory
from fastloop.types import Epochs, Plan, Prepared, Tree, option


@option
class Fastloop:
    """Threads gather rows ahead, several batches at a time where they are small, into memory that
    is used again once nobody holds it: no processes, nothing done a sample."""

    store: Store
    in_memory: bool
    num_threads: PositiveInt | None
    ahead: PositiveInt | None
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches whose memory is theirs for as long as they are held."""
        honours_only("fastloop", plan, *self.honours)
        rows = self.store.open(prepared.folder)
        loader = FastLoader(
            read_into_memory(rows) if self.in_memory else rows,
            plan.batch_size,
            drop_last=plan.drop_last,
            num_threads=self.num_threads,
            prefetch_factor=self.ahead,
        )
        yield partial(_epoch, loader, plan)


def _epoch(loader: FastLoader, plan: Plan, epoch: int) -> Iterator[Tree]:
    loader.sampler = epoch_indices(plan.order, loader.num_samples, plan.seed, epoch)
    return iter(loader)
