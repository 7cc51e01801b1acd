"""Make batches by a pipeline of the library SPDL, which serves all epochs of a loader in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch

from fastloop.core.index_batches import index_batches
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import Plan
from fastloop.core.types import Batches, Epochs, Tree

INSTALL = "pip install spdl"
"""The command that installs SPDL, for error messages."""

GetBatch = Callable[[np.ndarray], Tree]
"""int64 indices of a batch -> the batch."""


@dataclass(frozen=True)
class SpdlPipeline:
    """Settings of an SPDL pipeline, which turns the indices of a batch into the batch.

    An item of the pipeline is a whole batch, because asyncio adds overhead to every item.
    """

    option: str
    """The option that needs SPDL, such as `loader=spdl`, for error messages."""
    get_batch: GetBatch
    """Makes a batch of its indices."""
    concurrency: int
    """Number of calls of get_batch that run at the same time."""
    buffer_size: int
    """Number of finished batches that the sink, the pipeline's end, holds."""
    executor: Executor | None = None
    """The executor that calls get_batch; None: SPDL's threads."""

    @contextmanager
    def epochs(self, plan: Plan, num_samples: int) -> Iterator[Epochs]:
        """Epochs of one pipeline, which idles between epochs and stops when the context ends.

        If an epoch ends early, its pipeline is stopped, and a new one serves the next epoch.
        """
        idle: list[_RunningPipeline] = []

        def batches(epoch: int) -> Batches:
            pipeline = idle.pop() if idle else self._start()
            indices = list(index_batches(plan, num_samples, epoch))
            try:
                yield from pipeline.batches(indices)
            except BaseException:
                # The rest of the epoch is still requested, so the pipeline can't be used again.
                pipeline.stop()
                raise
            # Epochs that overlap have a pipeline each, so several may be idle.
            idle.append(pipeline)

        try:
            with close_on_exit(batches) as epochs:
                yield epochs
        finally:
            for pipeline in idle:
                pipeline.stop()

    def _start(self) -> _RunningPipeline:
        """Start SPDL's pipeline, which serves all epochs."""
        spdl = Library("spdl", self.option, INSTALL).load("spdl.pipeline")
        # SPDL polls for the end of a source every 0.1 s. So this source does not end after an
        # epoch, but waits for requests.
        requests: SimpleQueue[np.ndarray | None] = SimpleQueue()
        pipeline = (
            spdl.PipelineBuilder()
            .add_source(_read_requests(requests))
            # Without output_order="input", batches come in the order in which they are finished.
            .pipe(
                partial(_batch_or_failure, self.get_batch),
                concurrency=self.concurrency,
                executor=self.executor,
                output_order="input",
            )
            .add_sink(self.buffer_size)
            .build(
                num_threads=self.concurrency,
                task_hook_factory=lambda _: [],
                use_thread_output_queue=True,
            )
        )
        pipeline.start()
        return _RunningPipeline(requests, pipeline)


def _read_requests(requests: SimpleQueue[np.ndarray | None]) -> Iterator[np.ndarray]:
    """Yield each request, the indices of a batch, until a request is None."""
    while (indices := requests.get()) is not None:
        yield indices


@dataclass(frozen=True)
class _RunningPipeline:
    """A running SPDL pipeline, and the queue from which its source reads requests."""

    requests: SimpleQueue[np.ndarray | None]
    """Indices of batches; None ends the source."""
    pipeline: Any
    """SPDL's pipeline."""

    def batches(self, indices: Sequence[torch.Tensor]) -> Iterator[Tree]:
        """Request all batches of an epoch, and yield them in order; raises errors of get_batch.

        indices: the int64 indices of each batch.
        """
        for batch_indices in indices:
            self.requests.put(batch_indices.numpy())
        for _ in indices:
            batch = self.pipeline.get_item()
            if isinstance(batch, _Failure):
                raise batch.error
            yield batch

    def stop(self) -> None:
        """Discard outstanding requests, stop the pipeline's threads and wait for their end."""
        with suppress(Empty):
            while True:
                self.requests.get_nowait()
        self.requests.put(None)
        # The sink is drained, because a thread that finds it full would wait forever.
        with suppress(EOFError):
            while True:
                self.pipeline.get_item()
        self.pipeline.stop()


@dataclass(frozen=True)
class _Failure:
    """An error of get_batch, as an item in place of the batch.

    If get_batch raised its error in a thread of SPDL, SPDL would log it and go on without the
    batch.
    """

    error: Exception


def _batch_or_failure(get_batch: GetBatch, indices: np.ndarray) -> Any:
    """The batch of these indices, or a _Failure with the error of get_batch."""
    try:
        return get_batch(indices)
    except Exception as error:
        return _Failure(error)
