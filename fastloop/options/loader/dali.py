"""`loader=dali`: NVIDIA DALI on the CPU, with whole batches of rows as its external source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.bounds import PositiveDepth, PositiveThreads
from fastloop.core.index_batches import index_batches, num_batches
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Batches, Epochs, Tree, option
from fastloop.data.batch_getter import batch_getter

LIBRARY = Library("nvidia.dali", "loader=dali", "pip install nvidia-dali-cuda120")


@option
class DaliLoader:
    """A loader that delivers batches by a DALI pipeline on the CPU.

    The pipeline's `external_source` gathers the rows of a batch by numpy.

    DALI copies each batch into its own memory, as bytes, because it lacks some dtypes. Its
    operators are not used, because they would decode and resize image files to other pixels than
    the other loaders. No GPU is needed, and none is used.
    """

    store: Store
    """The store to read."""
    num_threads: PositiveThreads
    """Number of threads of the pipeline."""
    prefetch_queue_depth: PositiveDepth
    """Number of batches that the pipeline prepares ahead of the loop."""
    honours: ClassVar[tuple[str, ...]] = ()
    """No setting of a DataLoader is honoured."""
    has_even_shares: ClassVar[bool] = True
    """All ranks get the same number of batches, because the plan's order is followed."""

    def check_installed(self) -> None:
        """Raise Unsupported without DALI."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; each epoch has a pipeline of its own."""
        dali = LIBRARY.load()
        get_batch = batch_getter(self.store, prepared, in_memory=False)
        # The first row shows the dtypes and the shapes of the leaves.
        leaves, structure = pytree.tree_flatten(get_batch(np.zeros(1, np.int64)))

        def batches(epoch: int) -> Batches:
            def fetch() -> Iterator[list[np.ndarray]]:
                for indices in index_batches(plan, prepared.num_samples, epoch):
                    tree = get_batch(indices.numpy())
                    yield [_bytes_of_rows(leaf) for leaf in pytree.tree_leaves(tree)]

            pipeline = self._build(dali, fetch, len(leaves), plan.loading.batch_size)
            for _ in range(num_batches(plan, prepared.num_samples)):
                # The outputs are copied, because DALI writes later batches into the same memory.
                outputs = [np.array(out.as_tensor()) for out in pipeline.run()]
                rows = [
                    torch.from_numpy(out).view(leaf.dtype).reshape(len(out), *leaf.shape[1:])
                    for out, leaf in zip(outputs, leaves, strict=True)
                ]
                yield pytree.tree_unflatten(rows, structure)

        with close_on_exit(batches) as epochs:
            yield epochs

    def _build(
        self, dali: Any, fetch: Callable[[], Iterator[Tree]], num_leaves: int, batch_size: int
    ) -> Any:
        """A pipeline with the batches of `fetch` as outputs, one output for each leaf."""
        pipeline = dali.Pipeline(
            batch_size,
            self.num_threads,
            device_id=None,
            prefetch_queue_depth=self.prefetch_queue_depth,
        )
        with pipeline:
            pipeline.set_outputs(*dali.fn.external_source(fetch, num_outputs=num_leaves))
        pipeline.build()
        return pipeline


def _bytes_of_rows(leaf: torch.Tensor) -> np.ndarray:
    """The leaf as uint8 (rows, bytes of a row)."""
    return leaf.reshape(len(leaf), leaf[0].numel()).contiguous().view(torch.uint8).numpy()
