"""`loader=spdl`: Meta's SPDL, a pipeline of threads that asyncio leads, of whole batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
        """Epochs of batches; each is a pipeline of its own, whose threads end with it."""
        honours_only("spdl", plan, *self.honours)
        spdl = imported("spdl.pipeline", "loader=spdl", INSTALL)
        make = partial(_tried, batches_of(self.store, prepared, self.in_memory))

        def batches(epoch: int) -> Batches:
            indices = index_batches(plan, prepared.num_samples, epoch)
            pipeline = self._pipeline(spdl, indices, make)
            with pipeline.auto_stop():
                for batch in pipeline:
                    if isinstance(batch, _Failed):
                        raise batch.error
                    yield batch

        with closed_at_the_end(batches) as epochs:
            yield epochs

    def _pipeline(
        self, spdl: Any, indices: Iterator[torch.Tensor], make: Callable[[torch.Tensor], Any]
    ) -> Any:
        return (
            spdl.PipelineBuilder()
            .add_source(indices)
            .pipe(make, concurrency=self.num_threads, output_order="input")
            .add_sink(self.buffer_size)
            .build(
                num_threads=self.num_threads,
                task_hook_factory=lambda _: [],
                use_thread_output_queue=True,
            )
        )


@dataclass(frozen=True)
class _Failed:
    """In the place of a batch: SPDL would log the error and go on without the batch."""

    error: Exception


def _tried(make: Callable[[np.ndarray], Tree], indices: torch.Tensor) -> Any:
    try:
        return make(indices.numpy())
    except Exception as error:
        return _Failed(error)
