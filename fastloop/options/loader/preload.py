"""`loader=preload`: torch's DataLoader over a Python list of samples decoded beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import numpy as np
import optree
import torch

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.plan import CANONICAL_COLLATE, Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, option
from fastloop.data.rows import Rows
from fastloop.data.torch_epochs import torch_epochs

PYTHON_DTYPES = (np.int64, np.float64, np.bool_)
"""Dtypes that default_collate infers for Python numbers. Scalars of these become Python numbers;
other scalars stay numpy scalars."""


@option
class PreloadLoader:
    """DataLoader over a Python list of decoded samples: one list item per `__getitem__`, default
    collate."""

    store: Store
    honours: ClassVar[tuple[str, ...]] = (*DATALOADER, "transform", CANONICAL_COLLATE)
    has_even_shares: ClassVar[bool] = True
    in_memory: ClassVar[bool] = True

    @contextmanager
    def open(self, prepared: PreparedData, plan: Plan) -> Iterator[Epochs]:
        """Yield the epochs; the list is filled from the store first."""
        rows = Rows(partial(self.store.open, prepared.folder))
        samples = [optree.tree_map(_copy_leaf, rows[index]) for index in range(len(rows))]
        with torch_epochs(samples, plan) as epochs:
            yield epochs


def _copy_leaf(leaf: torch.Tensor | np.generic) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    return leaf.item() if leaf.dtype in PYTHON_DTYPES else leaf
