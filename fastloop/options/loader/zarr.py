"""`loader=zarr`: torch's DataLoader over the arrays of a Zarr group."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, Unsupported, option
from fastloop.data.rows_of_open_file import reader_epochs

LIBRARY = Library("zarr", "loader=zarr", "pip install zarr")


@option
class ZarrLoader:
    """DataLoader over a Zarr group, a folder of arrays in chunks; each worker opens the group.

    zarr's `oindex` reads all rows of a batch in one call, from several chunks concurrently.
    """

    store: Store
    """The store to read, which has to be a Zarr group."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without zarr."""
        LIBRARY.check()

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """A context with the epochs; every worker opens the group itself."""
        open_reader = partial(_ArrayReader, self.store, prepared.folder)
        return reader_epochs(open_reader, prepared, plan)


class _ArrayReader:
    """The arrays of an open group; raises Unsupported for a store of another format."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._rows: Any = store.open(folder)
        if not hasattr(self._rows, "arrays"):
            raise Unsupported("loader=zarr reads Zarr groups only: use store@loader.store=zarr")

    def read(self, indices: Sequence[int]) -> Tree:
        """The rows at these indices, in the order of the indices, as a tree of tensors."""
        # Each row is read once, even if the indices repeat it.
        rows, inverse = np.unique(np.asarray(indices), return_inverse=True)
        leaves = [torch.from_numpy(array.oindex[rows][inverse]) for array in self._rows.arrays]
        return pytree.tree_unflatten(leaves, self._rows.structure)

    def close(self) -> None:
        """End the threads of zarr; they start again at the next read."""
        LIBRARY.load("zarr.core.sync").cleanup_resources()
