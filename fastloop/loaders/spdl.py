"""`loader=spdl`: Meta's SPDL, a pipeline of threads that asyncio leads, of whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import PositiveInt

from fastloop.generators import Batches, closed_at_the_end
from fastloop.optional import check_found, imported
from fastloop.plans import honours_only, index_batches
from fastloop.protocols import Store
from fastloop.rows import batches_of
from fastloop.types import Epochs, Plan, Prepared, Tree, option

INSTALL = "pip install spdl"


@option
class Spdl:
    """Source: the indices of a batch; one stage of `num_threads` threads that gathers the batch by
    numpy, or decodes its samples where there is no store; sink: `buffer_size` batches ahead.

    Each item costs asyncio's time, and so none is a sample. SPDL's own decoders are not used: they
    want the libraries of FFmpeg.
    """

    store: Store | None
    in_memory: bool
    num_threads: PositiveInt
    buffer_size: PositiveInt
    honours: ClassVar[tuple[str, ...]] = ()

    def check_installed(self) -> None:
        """Raise Unsupported without SPDL."""
        check_found("spdl", "loader=spdl", INSTALL)

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from a pipeline that lives on from epoch to epoch, idle between them;
        one that ends early ends its pipeline."""
        honours_only("spdl", plan, *self.honours)
        spdl = imported("spdl.pipeline", "loader=spdl", INSTALL)
        make = partial(_tried, batches_of(self.store, prepared, self.in_memory))
        idle: list[_Line] = []

        def batches(epoch: int) -> Batches:
            line = idle.pop() if idle else self._started(spdl, make)
            indices = list(index_batches(plan, prepared.num_samples, epoch))
            try:
                yield from line.batches(indices)
            except BaseException:
                line.stop()
                raise
            idle.append(line)

        try:
            with closed_at_the_end(batches) as epochs:
                yield epochs
        finally:
            for line in idle:
                line.stop()

    def _started(self, spdl: Any, make: Callable[[torch.Tensor], Any]) -> _Line:
        # SPDL finds out that a source has ended by looking every 0.1 s: this one waits for more.
        asked: SimpleQueue[torch.Tensor | None] = SimpleQueue()
        pipeline = (
            spdl.PipelineBuilder()
            .add_source(iter(asked.get, None))
            .pipe(make, concurrency=self.num_threads, output_order="input")
            .add_sink(self.buffer_size)
            .build(
                num_threads=self.num_threads,
                task_hook_factory=lambda _: [],
                use_thread_output_queue=True,
            )
        )
        pipeline.start()
        return _Line(asked, pipeline)


@dataclass(frozen=True)
class _Line:
    """A running pipeline, and what its source reads: indices of batches, None at the end."""

    asked: SimpleQueue[torch.Tensor | None]
    pipeline: Any

    def batches(self, indices: Sequence[torch.Tensor]) -> Iterator[Tree]:
        for one in indices:
            self.asked.put(one)
        for _ in indices:
            batch = self.pipeline.get_item()
            if isinstance(batch, _Failed):
                raise batch.error
            yield batch

    def stop(self) -> None:
        """Return when its threads have ended, whatever they have been asked for."""
        with suppress(Empty):
            while True:
                self.asked.get_nowait()
        self.asked.put(None)
        with suppress(EOFError):  # a thread that finds the sink full would be waited for
            while True:
                self.pipeline.get_item()
        self.pipeline.stop()


@dataclass(frozen=True)
class _Failed:
    """In the place of a batch: SPDL would log the error and go on without the batch."""

    error: Exception


def _tried(make: Callable[[np.ndarray], Tree], indices: torch.Tensor) -> Any:
    try:
        return make(indices.numpy())
    except Exception as error:
        return _Failed(error)
