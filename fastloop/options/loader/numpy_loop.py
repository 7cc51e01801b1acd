"""`loader=numpy_loop`: a loop in numpy that permutes all rows and slices them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import optree
import torch

from fastloop.core.index_batches import epoch_indices
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, option
from fastloop.data.rows import read_into_memory
from fastloop.data.store_leaves import array_of


@option
class NumpyLoop:
    """A loop without a DataLoader: numpy permutes all rows at the start of an epoch, and each batch
    is a slice of the permuted rows.

    An epoch needs the memory of the data a second time, until its last batch is freed. A batch is
    never overwritten, so it can be kept.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()
    has_even_shares: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the arrays are read into memory first, and nothing is prefetched.

        Raises Unsupported for dtypes that numpy does not have.
        """
        leaves, structure = optree.tree_flatten(read_into_memory(self.store.open(prepared.folder)))
        arrays = [array_of(leaf, "loader=numpy_loop", "loader=index_loop") for leaf in leaves]
        yield _Arrays(arrays, structure, plan).batches


@dataclass(frozen=True)
class _Arrays:
    """The rows of all leaves in memory, as numpy arrays."""

    arrays: list[np.ndarray]
    structure: Any
    plan: Plan

    def batches(self, epoch: int) -> Iterator[Tree]:
        """Batches that are views of arrays which no other epoch uses."""
        order = epoch_indices(self.plan.order, len(self.arrays[0]), self.plan.seed, epoch).numpy()
        # Each epoch has new arrays: batches are views of them, and may be kept.
        permuted = [array.take(order, axis=0) for array in self.arrays]
        for slices in _slices(permuted, self.plan):
            yield self.structure.unflatten(map(torch.from_numpy, slices))


def _slices(arrays: list[np.ndarray], plan: Plan) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the slices of each batch, one for each array; only the last batch may be incomplete."""
    size = plan.loading.batch_size
    rows = len(arrays[0])
    # reshape() makes views of all full batches by one call.
    whole = rows - rows % size
    yield from zip(
        *(array[:whole].reshape(whole // size, size, *array.shape[1:]) for array in arrays),
        strict=True,
    )
    if whole < rows and not plan.loading.drop_last:
        yield tuple(array[whole:] for array in arrays)
