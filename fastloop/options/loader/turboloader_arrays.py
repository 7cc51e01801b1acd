"""`loader=turboloader_arrays`: turboloader's ArrayDataLoader over arrays of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import optree
import torch

from fastloop.core.open_iterators import close_on_exit
from fastloop.core.optional_libraries import Library
from fastloop.core.order_parts import is_shuffled
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Batches, Epochs, Unsupported, option

LIBRARY = Library("turboloader", "loader=turboloader_arrays", "pip install turboloader")


@option
class TurboLoaderArrays:
    """turboloader's `ArrayDataLoader(*arrays, shuffle=True)`, which gathers each batch by numpy.

    ArrayDataLoader runs in the loop itself, without threads. ArrayDataLoader draws its own
    permutation, and can follow no other random order.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()
    shuffles_itself: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without turboloader."""
        LIBRARY.check()

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs, over the memory maps of the store.

        Raises Unsupported for several ranks, and for rows that are not numpy arrays.
        """
        if plan.world_size > 1:
            reason = "turboloader's ArrayDataLoader has no shares for ranks"
            raise Unsupported(f"launcher=torchrun: {reason}; use loader=turboloader")
        arrays, structure = optree.tree_flatten(self.store.open(prepared.folder))
        if not all(isinstance(array, np.ndarray) for array in arrays):
            reason = "loader=turboloader_arrays reads arrays only"
            raise Unsupported(f"{reason}: use store@loader.store=npy")
        batches_of_arrays = LIBRARY.load().ArrayDataLoader(
            *arrays,
            batch_size=plan.loading.batch_size,
            shuffle=is_shuffled(plan),
            seed=plan.seed % 2**32,
            drop_last=plan.loading.drop_last,
        )

        def batches(epoch: int) -> Batches:
            batches_of_arrays.set_epoch(epoch)
            for batch in batches_of_arrays:
                # turboloader makes arrays from a single array, and tuples of arrays from several.
                leaves = batch if isinstance(batch, tuple) else (batch,)
                yield structure.unflatten(map(torch.from_numpy, leaves))

        with close_on_exit(batches) as epochs:
            yield epochs
