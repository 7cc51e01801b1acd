"""`loader=python_loop`: seed 004's loop in pure Python: shuffled lists, cut into slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import optree
import torch

from fastloop.plans import epoch_indices, honours_only
from fastloop.protocols import Store
from fastloop.rows import read_into_memory
from fastloop.types import Epochs, Plan, Prepared, Tree, option

EXACT = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float32, torch.float64),
)
"""Scalars of these come back from Python's numbers as they were."""


@option
class PythonLoop:
    """A list of rows for each leaf, a new shuffled list an epoch, a slice and a tensor a batch.

    The order is torch's, as every loader's is, where seed 004 calls random.sample.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = ()

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from lists that are filled first; nothing runs ahead."""
        honours_only("python_loop", plan, *self.honours)
        leaves, structure = optree.tree_flatten(read_into_memory(self.store.open(prepared.folder)))
        yield _Lists([_listed(leaf) for leaf in leaves], structure, plan).batches


@dataclass(frozen=True)
class _Lists:
    lists: list[tuple[list[Any], Callable[[list[Any]], torch.Tensor]]]
    structure: Any
    plan: Plan

    def batches(self, epoch: int) -> Iterator[Tree]:
        """Tensors of their own."""
        plan, count = self.plan, len(self.lists[0][0])
        order = epoch_indices(plan.order, count, plan.seed, epoch).tolist()
        shuffled = [([rows[index] for index in order], joined) for rows, joined in self.lists]
        stop = len(order) - len(order) % plan.batch_size if plan.drop_last else len(order)
        for start in range(0, stop, plan.batch_size):
            batch = slice(start, start + plan.batch_size)
            yield self.structure.unflatten([joined(rows[batch]) for rows, joined in shuffled])


def _listed(leaf: torch.Tensor) -> tuple[list[Any], Callable[[list[Any]], torch.Tensor]]:
    """The rows, as Python's numbers where they can be, and what makes a tensor of some of them."""
    if leaf.ndim == 1 and leaf.dtype in EXACT:
        return leaf.tolist(), partial(torch.tensor, dtype=leaf.dtype)
    return list(leaf), torch.stack
