"""`loader=spdl_process`: Meta's SPDL with a pool of processes, which make whole batches."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.core.bounds import PositiveDepth, PositiveThreads
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import RAGGED_COLLATE, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Collate, Store
from fastloop.core.types import Epochs, Tree, option
from fastloop.data.batch_getter import batch_getter
from fastloop.data.spdl_pipeline import INSTALL, SpdlPipeline
from fastloop.processes.parent_death import tie_worker_to_parent

_get_batch: Callable[[np.ndarray], Tree] | None = None
"""In a process of the pool: the function that makes a batch, set when the process starts."""


@option
class SpdlProcessLoader:
    """A pipeline of SPDL with a ProcessPoolExecutor: batch indices -> `num_processes` processes ->
    `buffer_size` batches, which come in shared memory.

    The processes gather a batch by numpy or, with store=null, decode its samples. SPDL's pools of
    subinterpreters are not used, because they can import neither NumPy nor PyTorch.
    """

    store: Store | None
    """The store to read; None: the samples of the dataset itself are read."""
    num_processes: PositiveThreads
    """Number of processes of the pool."""
    buffer_size: PositiveDepth
    """Maximum number of batches that the pipeline's sink holds ahead of the loop."""
    has_even_shares: ClassVar[bool] = True
    reads_samples: ClassVar[bool] = True

    @property
    def honours(self) -> tuple[str, ...]:
        """Names of honoured settings.

        With store=null: a collate for samples of different lengths, which no store can hold.
        """
        return () if self.store else (RAGGED_COLLATE,)

    def check_installed(self) -> None:
        """Raise Unsupported without SPDL."""
        Library("spdl", "loader=spdl_process", INSTALL).check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the processes start with the first one, and end on exit."""
        # A store that can't be gathered from raises here, and not in a process of the pool.
        batch_getter(self.store, prepared, in_memory=False, collate=plan.collate)
        context = multiprocessing.get_context()
        # Each process waits for the others, so that all have started when the first one answers.
        all_ready = context.Barrier(self.num_processes)
        pool = ProcessPoolExecutor(
            self.num_processes,
            context,
            initializer=_prepare_process,
            initargs=(self.store, prepared, plan.collate, all_ready),
        )
        pipeline = SpdlPipeline(
            "loader=spdl_process", _call, self.num_processes, self.buffer_size, pool
        )
        with pool, pipeline.epochs(plan, prepared.num_samples) as epochs:
            yield lambda epoch: self._start_first(pool, epochs, epoch)

    def _start_first(self, pool: ProcessPoolExecutor, epochs: Epochs, epoch: int) -> Any:
        """Start all processes, then return the batches of an epoch.

        SPDL's threads must not be forked, so no process may start later.
        """
        for ready in [pool.submit(_is_ready) for _ in range(self.num_processes)]:
            ready.result()
        return epochs(epoch)


def _prepare_process(
    store: Store | None, prepared: PreparedData, collate: Collate | None, all_ready: Barrier
) -> None:
    tie_worker_to_parent(0)
    # torch gets one thread, as in DataLoader's workers. If the process was forked, the threads that
    # its parent has used are missing here, and an operation on several threads would wait for them.
    torch.set_num_threads(1)
    global _get_batch  # noqa: PLW0603 - a process of the pool has no other place to keep it
    _get_batch = batch_getter(store, prepared, in_memory=False, collate=collate)
    all_ready.wait()


def _is_ready() -> bool:
    return _get_batch is not None


def _call(indices: np.ndarray) -> Tree:
    assert _get_batch is not None
    return _get_batch(indices)
