"""`loader=lance`: torch's DataLoader over a Lance dataset."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, Unsupported, option
from fastloop.data.rows_of_open_file import reader_epochs


@option
class LanceLoader:
    """DataLoader over a Lance dataset. Lance's `take` reads the rows of a batch in its own threads.

    Workers open the dataset themselves, and must not be forked.
    """

    store: Store
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without Lance."""
        Library("lance", "loader=lance", "pip install pylance").check()

    def check(self, plan: Plan) -> None:
        """Raise Unsupported for workers that are forked."""
        workers = plan.loading.num_workers
        if workers and plan.loading.multiprocessing_context == "fork":
            hint = "use multiprocessing_context=spawn or forkserver"
            raise Unsupported(f"num_workers={workers}: Lance is not fork-safe; {hint}")

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """The epochs; every worker opens the dataset itself."""
        open_reader = partial(_LanceReader, self.store, prepared.folder)
        return reader_epochs(open_reader, prepared, plan)


class _LanceReader:
    """An open Lance dataset."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._rows: Any = store.open(folder)
        if not hasattr(self._rows, "lance_dataset"):
            raise Unsupported(
                "loader=lance reads Lance datasets only: use store@loader.store=lance"
            )

    def read(self, indices: Sequence[int]) -> Tree:
        """The rows of these indices, in their order, as a tree of tensors."""
        # The columns are copied, because Arrow's memory is read-only, and batches may be changed.
        leaves = [torch.tensor(column) for column in self._rows.take(list(map(int, indices)))]
        return pytree.tree_unflatten(leaves, self._rows.structure)

    def close(self) -> None:
        """The files are closed with the last reference to the dataset."""
        del self._rows
