"""`loader=grain`: Google's grain; each item of its pipeline is a whole batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.core.bounds import Depth, Threads
from fastloop.core.index_batches import index_batches
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import RAGGED_COLLATE, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Batches, Epochs, Tree, option
from fastloop.data.batch_getter import batch_getter

LIBRARY = Library("grain", "loader=grain", "pip install grain")


@option
class GrainLoader:
    """A pipeline of grain, `MapDataset.source(batches).to_iter_dataset(ReadOptions(…))`: item k is
    batch k of the epoch.

    One of grain's threads gathers the batch by numpy or, with store=null, decodes its samples. One
    sample per item, as in grain's examples, would add Python overhead for every sample.
    """

    store: Store | None
    """The store to read; None: the samples of the dataset itself are read."""
    in_memory: bool
    """True: the whole store is read into memory before the first epoch."""
    num_threads: Threads
    """Number of threads that make batches, `num_threads` of grain's ReadOptions; 0: the loop makes
    all batches."""
    prefetch_buffer_size: Depth
    """Maximum number of batches that grain holds ahead of the loop."""
    has_even_shares: ClassVar[bool] = True
    reads_samples: ClassVar[bool] = True

    @property
    def honours(self) -> tuple[str, ...]:
        """Names of honoured settings.

        With store=null: a collate for samples of different lengths, which no store can hold.
        """
        return () if self.store else (RAGGED_COLLATE,)

    def check_installed(self) -> None:
        """Raise Unsupported without grain."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; grain's threads are started and ended with each epoch."""
        grain = _grain()
        get_batch = batch_getter(self.store, prepared, self.in_memory, plan.collate)
        read = grain.ReadOptions(
            num_threads=self.num_threads, prefetch_buffer_size=self.prefetch_buffer_size
        )

        def batches(epoch: int) -> Batches:
            indices = list(index_batches(plan, prepared.num_samples, epoch))
            # Each epoch has a new iterator: grain's own shuffle and repeat do not know the plan's
            # orders.
            source = grain.MapDataset.source(_BatchSource(indices, get_batch))
            iterator = iter(source.to_iter_dataset(read))
            try:
                yield from iterator
            finally:
                # An epoch that is left early would leave grain's threads running.
                iterator.close()

        with close_on_exit(batches) as epochs:
            yield epochs


@dataclass(frozen=True)
class _BatchSource:
    """The batches of an epoch, as grain's random-access source."""

    indices: Sequence[torch.Tensor]
    get_batch: Callable[[np.ndarray], Tree]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, number: int) -> Tree:
        return self.get_batch(self.indices[number].numpy())


def _grain() -> Any:
    """The module, imported without absl's warning that jax's profiler is missing."""
    logger = logging.getLogger("absl")
    # absl's logger may have been configured by the user: it is left as it was.
    before = logger.disabled
    logger.disabled = True
    try:
        return LIBRARY.load()
    finally:
        logger.disabled = before
