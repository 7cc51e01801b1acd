"""`loader=dali`: NVIDIA DALI on the CPU, with whole batches of rows as its external source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.bounds import PositiveDepth, PositiveThreads
from fastloop.core.epochs import Batches, close_on_exit, index_batches, num_batches
from fastloop.core.optional import check_available, import_optional
from fastloop.core.plan import Plan, PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, Unsupported, option
from fastloop.data.rows import array_of, batch_getter

INSTALL = "pip install nvidia-dali-cuda120"
DTYPES = "biuf"
"""numpy's kinds of the dtypes that DALI has."""


@option
class DaliLoader:
    """A DALI pipeline on the CPU whose `external_source` gathers a batch by numpy.

    DALI copies each batch into memory of its own. Its operators are not used: image files are not
    decoded and resized to the pixels of other loaders. No GPU is needed, and none is used.
    """

    store: Store
    num_threads: PositiveThreads
    prefetch_queue_depth: PositiveDepth
    honours: ClassVar[tuple[str, ...]] = ()
    even_shares: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without DALI."""
        check_available("nvidia", "loader=dali", INSTALL)
        check_available("nvidia.dali", "loader=dali", INSTALL)

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs, each of a pipeline of its own; raises Unsupported for dtypes that DALI
        lacks."""
        dali = import_optional("nvidia.dali", "loader=dali", INSTALL)
        get_batch = batch_getter(self.store, prepared, in_memory=False)
        leaves, structure = pytree.tree_flatten(get_batch(np.zeros(1, np.int64)))
        for leaf in leaves:
            kind = array_of(leaf, "loader=dali", "loader=np_memmap").dtype
            if kind.kind not in DTYPES:
                raise Unsupported(f"loader=dali holds no {kind}; loader=np_memmap does")

        def batches(epoch: int) -> Batches:
            def fetch() -> Iterator[list[np.ndarray]]:
                for indices in index_batches(plan, prepared.num_samples, epoch):
                    tree = get_batch(indices.numpy())
                    yield [leaf.numpy() for leaf in pytree.tree_leaves(tree)]

            pipeline = self._build(dali, fetch, len(leaves), plan.loading.batch_size)
            for _ in range(num_batches(plan, prepared.num_samples)):
                # Copied, because DALI writes later batches into the same memory.
                outputs = [torch.from_numpy(np.array(out.as_tensor())) for out in pipeline.run()]
                yield pytree.tree_unflatten(outputs, structure)

        with close_on_exit(batches) as epochs:
            yield epochs

    def _build(
        self, dali: Any, fetch: Callable[[], Iterator[Tree]], num_leaves: int, batch_size: int
    ) -> Any:
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
