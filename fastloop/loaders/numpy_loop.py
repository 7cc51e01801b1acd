"""`loader=numpy_loop`: seed 004's loop in numpy: everything is permuted, then reshaped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import optree
import torch

from fastloop.plans import epoch_indices, honours_only
from fastloop.protocols import Store
from fastloop.rows import array_of, read_into_memory
from fastloop.types import Epochs, Plan, Prepared, Tree, option


@option
class NumpyLoop:
    """All rows are put in the epoch's order at once; batches are slices, tensors by `from_numpy`.

    An epoch takes the memory of the data once more, which is freed when its last batch is. No
    batch is ever written to again, so that whoever keeps one keeps its values.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from arrays that are read into memory first; nothing runs ahead.

        Raises Unsupported for dtypes that numpy does not have.
        """
        honours_only("numpy_loop", plan, *self.honours)
        leaves, structure = optree.tree_flatten(read_into_memory(self.store.open(prepared.folder)))
        arrays = [array_of(leaf, "loader=numpy_loop", "loader=index_loop") for leaf in leaves]
        yield _Arrays(arrays, structure, plan).batches


@dataclass(frozen=True)
class _Arrays:
    arrays: list[np.ndarray]
    structure: Any
    plan: Plan

    def batches(self, epoch: int) -> Iterator[Tree]:
        """Views of arrays that belong to this epoch alone."""
        order = epoch_indices(self.plan.order, len(self.arrays[0]), self.plan.seed, epoch).numpy()
        permuted = [array.take(order, axis=0) for array in self.arrays]
        for slices in _slices(permuted, self.plan):
            yield self.structure.unflatten(map(torch.from_numpy, slices))


def _slices(arrays: list[np.ndarray], plan: Plan) -> Iterator[tuple[np.ndarray, ...]]:
    """Whole batches by reshape, then the short one."""
    size, rows = plan.batch_size, len(arrays[0])
    whole = rows - rows % size
    yield from zip(
        *(array[:whole].reshape(whole // size, size, *array.shape[1:]) for array in arrays),
        strict=True,
    )
    if whole < rows and not plan.drop_last:
        yield tuple(array[whole:] for array in arrays)
