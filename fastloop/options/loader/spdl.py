"""`loader=spdl`: Meta's SPDL, a pipeline of threads under asyncio; each item is a whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fastloop.core.bounds import PositiveDepth, PositiveThreads
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import RAGGED_COLLATE, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, option
from fastloop.data.batch_getter import batch_getter
from fastloop.data.spdl_pipeline import INSTALL, SpdlPipeline


@option
class SpdlLoader:
    """A pipeline of SPDL, in which `num_threads` threads make whole batches.

    The sink, the end of the pipeline, holds up to `buffer_size` finished batches. A thread gathers
    a batch by numpy or, with store=null, decodes its samples. Items are batches, not samples,
    because asyncio adds overhead to every item. SPDL's decoders are not used: they need FFmpeg.
    """

    store: Store | None
    """The store to read; None: the samples of the dataset itself are read."""
    in_memory: bool
    """True: the whole store is read into memory before the first epoch."""
    num_threads: PositiveThreads
    """Number of threads of the pipeline."""
    buffer_size: PositiveDepth
    """Maximum number of batches that the pipeline's sink holds ahead of the loop."""
    has_even_shares: ClassVar[bool] = True
    reads_samples: ClassVar[bool] = True

    @property
    def honours(self) -> tuple[str, ...]:
        """Names of the optional settings that the loader honours; empty with a store.

        With store=null the loader honours a collate for samples of different lengths, which no
        store can hold.
        """
        return () if self.store else (RAGGED_COLLATE,)

    def check_installed(self) -> None:
        """Raise Unsupported without SPDL."""
        Library("spdl", "loader=spdl", INSTALL).check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the pipeline idles between epochs, and stops if one ends early."""
        get_batch = batch_getter(self.store, prepared, self.in_memory, plan.collate)
        pipeline = SpdlPipeline("loader=spdl", get_batch, self.num_threads, self.buffer_size)
        with pipeline.epochs(plan, prepared.num_samples) as epochs:
            yield epochs
