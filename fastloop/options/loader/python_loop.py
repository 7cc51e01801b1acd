"""`loader=python_loop`: a loop in pure Python over slices of shuffled lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import optree
import torch

from fastloop.core.index_batches import epoch_indices
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, option
from fastloop.data.rows import read_into_memory

EXACT = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float32,
    torch.float64,
)
"""Dtypes with values that survive a conversion to Python's numbers and back."""


@option
class PythonLoop:
    """A loop without a DataLoader, over slices of Python lists.

    The list of each leaf is shuffled every epoch, in the plan's order as for every loader, and
    sliced into batches. Each slice is converted to a tensor.
    """

    store: Store
    """The store from which the lists are filled."""
    honours: ClassVar[tuple[str, ...]] = ()
    """The loader honours no settings except those that every loader honours."""
    has_even_shares: ClassVar[bool] = True
    """True: all ranks get the same number of batches."""
    in_memory: ClassVar[bool] = True
    """True: all rows are copied into memory before the first epoch."""

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the lists are filled first, and nothing is prefetched."""
        leaves, structure = optree.tree_flatten(read_into_memory(self.store.open(prepared.folder)))
        yield _Lists([_as_list(leaf) for leaf in leaves], structure, plan).batches


@dataclass(frozen=True)
class _Lists:
    """The rows of all leaves in memory, as Python lists."""

    lists: list[tuple[list[Any], Callable[[list[Any]], torch.Tensor]]]
    """For each leaf, its rows, and the function that stacks a slice of them to a tensor."""
    structure: Any
    """optree's PyTreeSpec of a sample."""
    plan: Plan
    """The order, the seed and the batch size."""

    def batches(self, epoch: int) -> Iterator[Tree]:
        """Yield the batches of the epoch of that number, as trees of new tensors."""
        plan = self.plan
        count = len(self.lists[0][0])
        order = epoch_indices(plan.order, count, plan.seed, epoch).tolist()
        shuffled = [([rows[index] for index in order], stack) for rows, stack in self.lists]
        size = plan.loading.batch_size
        stop = len(order) - len(order) % size if plan.loading.drop_last else len(order)
        for start in range(0, stop, size):
            batch = slice(start, start + size)
            yield self.structure.unflatten([stack(rows[batch]) for rows, stack in shuffled])


def _as_list(leaf: torch.Tensor) -> tuple[list[Any], Callable[[list[Any]], torch.Tensor]]:
    """The leaf's rows, as Python numbers if that loses nothing, and a function that stacks rows."""
    if leaf.ndim == 1 and leaf.dtype in EXACT:
        return leaf.tolist(), partial(torch.tensor, dtype=leaf.dtype)
    return list(leaf), torch.stack
