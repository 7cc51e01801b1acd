"""`loader=parquet`: torch's DataLoader over the row groups of a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import PositiveInt
from torch.utils import _pytree as pytree

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, Unsupported, option
from fastloop.data.rows_of_open_file import RowGroups, reader_epochs


@option
class ParquetLoader:
    """DataLoader over a Parquet file. pyarrow decodes the row groups that a batch needs.

    The `groups_in_memory` row groups that were used last are kept. order=blocks with blocks of
    row_group_rows suits row groups: it shuffles the groups, and then the rows within each. Each
    worker then decodes each row group once an epoch.
    """

    store: Store
    """The store to read."""
    groups_in_memory: PositiveInt
    """Maximum number of decoded row groups that each worker keeps."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported without pyarrow."""
        Library("pyarrow", "loader=parquet", "pip install pyarrow").check()

    def rows_caveat(self, num_samples: int) -> str:
        """A caveat if all row groups stay in memory, so that Parquet is read in the first epoch
        only; otherwise empty."""
        rows = getattr(self.store, "row_group_rows", 0)
        groups = -(-num_samples // rows) if rows else 0
        if not 0 < groups <= self.groups_in_memory:
            return ""
        count = "its only row group stays" if groups == 1 else f"all {groups} row groups stay"
        setting = f"loader.groups_in_memory={self.groups_in_memory}"
        return f"reads memory: {count} decoded after a first epoch ({setting})"

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """The epochs; every worker opens the file itself."""
        open_reader = partial(_GroupReader, self.store, prepared.folder, self.groups_in_memory)
        return reader_epochs(open_reader, prepared, plan)


class _GroupReader:
    """An open Parquet file, and the row groups that were used last, decoded."""

    def __init__(self, store: Store, folder: Path, groups_in_memory: int) -> None:
        self._rows: Any = store.open(folder)
        if not hasattr(self._rows, "read_group"):
            raise Unsupported(
                "loader=parquet reads Parquet files only: use store@loader.store=parquet"
            )
        self._groups = RowGroups(self._rows.first_rows, self._rows.read_group, groups_in_memory)

    def read(self, indices: Sequence[int]) -> Tree:
        """The rows of these indices, in their order, as a tree of tensors."""
        leaves = self._groups.gather(indices)
        return pytree.tree_unflatten(map(torch.from_numpy, leaves), self._rows.structure)

    def close(self) -> None:
        self._groups.clear()
        self._rows.file.close(force=True)
