"""`loader=hf_datasets`: a Hugging Face Dataset in torch format, in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fastloop.core.loading_settings import DATALOADER
from fastloop.core.optional_libraries import Library
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import Store
from fastloop.core.types import Epochs, Tree, Unsupported, option
from fastloop.data.rows_of_open_file import reader_epochs


@option
class HfDatasetsLoader:
    """A DataLoader over `Dataset.with_format("torch")`, which reads each batch by one request.

    The documentation of Hugging Face datasets recommends this.
    """

    store: Store
    """The store to read; only store=hf_datasets can be read."""
    honours: ClassVar[tuple[str, ...]] = DATALOADER
    has_even_shares: ClassVar[bool] = True

    def check_installed(self) -> None:
        """Raise Unsupported if the library datasets is not installed."""
        Library("datasets", "loader=hf_datasets", "pip install datasets").check()

    def open(self, prepared: PreparedData, plan: Plan) -> AbstractContextManager[Epochs]:
        """Epochs of the DataLoader; each process that reads rows maps the Arrow file itself."""
        open_reader = partial(_ArrowReader, self.store, prepared.folder)
        return reader_epochs(open_reader, prepared, plan)


class _ArrowReader:
    """A reader of batches from a mapped Arrow file, as a Dataset in torch format.

    Raises Unsupported for a store other than store=hf_datasets.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        self._rows: Any = store.open(folder)
        if not hasattr(self._rows, "dataset"):
            raise Unsupported(
                "loader=hf_datasets reads Arrow files only: use store@loader.store=hf_datasets"
            )
        self._dataset = self._rows.dataset.with_format("torch")

    def read(self, indices: Sequence[int]) -> Tree:
        """The rows of these indices, in their order, as a tree of tensors."""
        return self._rows.tree(self._dataset[list(indices)])

    def close(self) -> None:
        """Release the Dataset. The file is unmapped with the last reference to it."""
        del self._dataset, self._rows
