"""`loader=spdl`: Meta's SPDL, a pipeline of threads under asyncio, with whole batches as items."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.core.bounds import PositiveDepth, PositiveThreads
from fastloop.core.epochs import Batches, close_on_exit, index_batches
from fastloop.core.optional import check_available, import_optional
from fastloop.core.plan import Plan, PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, option
from fastloop.data.rows import batch_getter

INSTALL = "pip install spdl"


@option
class SpdlLoader:
    """SPDL pipeline: batch indices -> `num_threads` threads that gather -> `buffer_size` batches.

    The threads gather a batch by numpy or, with store=null, decode its samples. Items are batches,
    because asyncio adds overhead to every item. SPDL's decoders are not used: they need FFmpeg.
    """

    store: Store | None
    in_memory: bool
    num_threads: PositiveThreads
    buffer_size: PositiveDepth
    honours: ClassVar[tuple[str, ...]] = ()
    even_shares: ClassVar[bool] = True
    reads_samples: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without SPDL."""
        check_available("spdl", "loader=spdl", INSTALL)

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs of a pipeline that idles between them; ending one early stops it."""
        spdl = import_optional("spdl.pipeline", "loader=spdl", INSTALL)
        get_batch = partial(_batch_or_failure, batch_getter(self.store, prepared, self.in_memory))
        idle: list[_Pipeline] = []

        def batches(epoch: int) -> Batches:
            pipeline = idle.pop() if idle else self._start(spdl, get_batch)
            indices = list(index_batches(plan, prepared.num_samples, epoch))
            try:
                yield from pipeline.batches(indices)
            except BaseException:
                # Requests of the rest of the epoch are still in the queue: the pipeline can't be
                # used again.
                pipeline.stop()
                raise
            idle.append(pipeline)

        try:
            with close_on_exit(batches) as epochs:
                yield epochs
        finally:
            for pipeline in idle:
                pipeline.stop()

    def _start(self, spdl: Any, get_batch: Callable[[torch.Tensor], Any]) -> _Pipeline:
        # SPDL polls for the end of a source every 0.1 s; this source waits for more instead.
        requests: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        pipeline = (
            spdl.PipelineBuilder()
            .add_source(iter(requests.get, None))
            # output_order: otherwise batches come in the order in which threads finish them.
            .pipe(get_batch, concurrency=self.num_threads, output_order="input")
            .add_sink(self.buffer_size)
            .build(
                num_threads=self.num_threads,
                task_hook_factory=lambda _: [],
                use_thread_output_queue=True,
            )
        )
        pipeline.start()
        return _Pipeline(requests, pipeline)


@dataclass(frozen=True)
class _Pipeline:
    """A running SPDL pipeline and the queue of its source: indices of batches, None to end it."""

    requests: SimpleQueue[torch.Tensor | None]
    pipeline: Any

    def batches(self, indices: Sequence[torch.Tensor]) -> Iterator[Tree]:
        for batch_indices in indices:
            self.requests.put(batch_indices)
        for _ in indices:
            batch = self.pipeline.get_item()
            if isinstance(batch, _Failure):
                raise batch.error
            yield batch

    def stop(self) -> None:
        """Discard outstanding requests, stop the threads and wait for their end."""
        with suppress(Empty):
            while True:
                self.requests.get_nowait()
        self.requests.put(None)
        # Drained, because a thread blocks while the sink is full.
        with suppress(EOFError):
            while True:
                self.pipeline.get_item()
        self.pipeline.stop()


@dataclass(frozen=True)
class _Failure:
    """An error in the place of a batch; SPDL would log it and continue without the batch."""

    error: Exception


def _batch_or_failure(get_batch: Callable[[np.ndarray], Tree], indices: torch.Tensor) -> Any:
    try:
        return get_batch(indices.numpy())
    except Exception as error:
        return _Failure(error)
