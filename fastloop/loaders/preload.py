"""`loader=preload`: torch's DataLoader over a Python list of samples decoded beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import optree
import torch

from fastloop.plans import DATALOADER, honours_only
from fastloop.protocols import Store
from fastloop.rows import Rows
from fastloop.torch_loader import torch_epochs
from fastloop.types import Epochs, Plan, Prepared, option

PYTHONS = (np.int64, np.float64, np.bool_)
"""What default_collate makes of Python's numbers; other scalars stay numpy's, with their dtype."""


@option
class Preload:
    """Every sample lies decoded in memory by itself; one `__getitem__` a sample, default
    collate."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = (*DATALOADER, "transform")

    @contextmanager
    def open(self, prepared: Prepared, plan: Plan) -> Iterator[Epochs]:
        """Epochs of batches from the list, which is filled from the store first."""
        honours_only("preload", plan, *self.honours)
        rows = Rows(partial(self.store.open, prepared.folder))
        samples = [optree.tree_map(_own, rows[index]) for index in range(len(rows))]
        with torch_epochs(samples, plan) as epochs:
            yield epochs


def _own(leaf: torch.Tensor | np.generic) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return leaf.item() if leaf.dtype in PYTHONS else leaf
