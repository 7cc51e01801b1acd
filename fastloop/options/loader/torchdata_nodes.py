"""`loader=torchdata_nodes`: a graph of torchdata.nodes; each item is a whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.core.bounds import PositiveDepth, PositiveThreads
from fastloop.core.index_batches import index_batches
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import RAGGED_COLLATE, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Batches, Epochs, option
from fastloop.data.batch_getter import batch_getter

LIBRARY = Library("torchdata", "loader=torchdata_nodes", "pip install torchdata")


@option
class TorchDataNodesLoader:
    """A loader that is a graph of torchdata.nodes, in which each item is a whole batch.

    The graph is `IterableWrapper(batches)` -> `ParallelMapper(gather, num_threads)` ->
    `Prefetcher`. A thread gathers a batch by numpy or, with store=null, decodes its samples. Items
    are whole batches, because each item passes through three queues.
    """

    store: Store | None
    """The store to read; None: the samples of the dataset itself are read."""
    num_threads: PositiveThreads
    """Number of threads of the ParallelMapper."""
    prefetch_factor: PositiveDepth
    """Maximum number of batches that the Prefetcher holds ahead of the loop."""
    has_even_shares: ClassVar[bool] = True
    reads_samples: ClassVar[bool] = True

    @property
    def honours(self) -> tuple[str, ...]:
        """Names of the settings that the loader honours.

        With store=null, the only one is a collate for samples of different lengths, which no store
        can hold. With a store, there is none.
        """
        return () if self.store else (RAGGED_COLLATE,)

    def check_installed(self) -> None:
        """Raise Unsupported if torchdata is not installed."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; each epoch starts and ends its own threads."""
        nodes = LIBRARY.load("torchdata.nodes")
        get_batch = batch_getter(self.store, prepared, in_memory=False, collate=plan.collate)

        def batches(epoch: int) -> Batches:
            indices = [batch.numpy() for batch in index_batches(plan, prepared.num_samples, epoch)]
            gathered = nodes.ParallelMapper(
                nodes.IterableWrapper(indices), get_batch, self.num_threads, method="thread"
            )
            # The graph ends its threads when it is freed, which is when this generator ends.
            graph = nodes.Prefetcher(gathered, self.prefetch_factor)
            graph.reset()
            yield from graph

        with close_on_exit(batches) as epochs:
            yield epochs
