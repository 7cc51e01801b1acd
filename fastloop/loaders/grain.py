"""`loader=grain`: Google's grain, whose items are whole batches here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import NonNegativeInt

from fastloop.generators import Batches, closed_at_the_end
from fastloop.optional import check_found, imported
from fastloop.plans import honours_only, index_batches
from fastloop.protocols import Store
from fastloop.rows import batches_of
from fastloop.types import Epochs, Plan, Prepared, Tree, option

NEEDS = "grain", "loader=grain", "pip install grain"


@option
class Grain:
    """`MapDataset.source(batches).to_iter_dataset(ReadOptions(…))`: item k of the source is batch
    k of the epoch, gathered by numpy in one of grain's threads; without a store its samples are
    decoded there. A sample an item, as grain is shown, costs Python's time for each."""

    store: Store | None
    in_memory: bool
    num_threads: NonNegativeInt
    prefetch_buffer_size: NonNegativeInt
    honours: ClassVar[tuple[str, ...]] = ()

    def check_installed(self) -> None:
        """Raise Unsupported without grain."""
        check_found(*NEEDS)

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches; grain's threads are new in each, and end with it."""
        honours_only("grain", plan, *self.honours)
        grain, make = _grain(), batches_of(self.store, prepared, self.in_memory)
        read = grain.ReadOptions(
            num_threads=self.num_threads, prefetch_buffer_size=self.prefetch_buffer_size
        )

        def batches(epoch: int) -> Batches:
            indices = list(index_batches(plan, prepared.num_samples, epoch))
            source = grain.MapDataset.source(_Whole(indices, make))
            iterator = iter(source.to_iter_dataset(read))
            try:
                yield from iterator
            finally:
                iterator.close()

        with closed_at_the_end(batches) as epochs:
            yield epochs


@dataclass(frozen=True)
class _Whole:
    """The batches of an epoch as grain's source."""

    indices: Sequence[torch.Tensor]
    make: Callable[[np.ndarray], Tree]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> Tree:
        return self.make(self.indices[number].numpy())


def _grain() -> Any:
    """The module; it does not say that jax's profiler is not there."""
    told = logging.getLogger("absl")
    before, told.disabled = told.disabled, True
    try:
        return imported(*NEEDS)
    finally:
        told.disabled = before
