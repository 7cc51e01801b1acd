"""`dataset=table`: a generated table of many columns in a Parquet file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt

from fastloop.core.atomic_files import write_beside
from fastloop.core.fingerprints import file_fingerprint, fingerprint
from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, option
from fastloop.data.dataset_files import create_once

SEED = 0
"""The seed of the random columns."""
NUM_CLASSES = 2
CATEGORIES = 1000
"""Number of values of a column of categories."""
LABEL = "label"
"""Name of the column of labels."""
OWN_DATA = "to read your own table, name your Dataset: dataset._target_=..."
"""Advice in the error message that appears if dataset.root holds other files."""
LIBRARY = Library("pyarrow", "dataset=table", "pip install pyarrow")


@dataclass(frozen=True)
class TableRows:
    """A table in memory with samples {column: scalar}."""

    columns: dict[str, np.ndarray]
    """Name of each column -> its values, (rows,)."""

    def __len__(self) -> int:
        return len(self.columns[LABEL])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(column[index]) for name, column in self.columns.items()}


@option
class TableDataset:
    """A table of float32 numbers, int64 categories and int64 labels, in a Parquet file.

    Every third column is a category; the last column is the label. Needs pyarrow.
    """

    label: ClassVar[str] = "table"
    num_classes: ClassVar[None] = None
    uint8_scale: ClassVar[None] = None
    gathers: ClassVar[bool] = True
    root: str
    """Path of the folder that contains the Parquet file."""
    count: PositiveInt
    """Number of rows."""
    columns: Annotated[int, Field(ge=2)]
    """Number of columns, including the column of the labels."""

    @property
    def path(self) -> Path:
        """The path of the Parquet file."""
        return Path(self.root) / f"table-{self.count}x{self.columns}.parquet"

    def fetch(self) -> str:
        """A fingerprint of the Parquet file, which is created if it is missing.

        Raises Unsupported without pyarrow, and BadData if the file can't be written.
        """
        LIBRARY.load("pyarrow.parquet")
        create_once(self.path, self._make, self.root, OWN_DATA)
        return fingerprint("table", file_fingerprint(self.path))

    def files(self) -> list[Path]:
        """The Parquet file."""
        return [self.path]

    def open(self) -> TableRows:
        """All columns, decoded into memory; raises BadData for a file without a label column."""
        parquet = LIBRARY.load("pyarrow.parquet")
        try:
            table = parquet.read_table(self.path)
        except (OSError, ValueError) as error:
            raise BadData(f"{self.path}: not a Parquet file: {error}") from error
        if LABEL not in table.column_names:
            raise BadData(f"{self.path}: it has no column {LABEL}")
        # The columns are copied, because Arrow's memory is read-only, and torch warns of tensors
        # over such memory.
        return TableRows({name: table[name].to_numpy().copy() for name in table.column_names})

    def _make(self) -> None:
        pyarrow = LIBRARY.load()
        parquet = LIBRARY.load("pyarrow.parquet")
        generator = np.random.default_rng(SEED)
        columns: dict[str, np.ndarray] = {}
        for number in range(self.columns - 1):
            if number % 3 == 2:
                columns[f"category{number}"] = generator.integers(CATEGORIES, size=self.count)
            else:
                columns[f"number{number}"] = generator.standard_normal(self.count, np.float32)
        columns[LABEL] = generator.integers(NUM_CLASSES, size=self.count)
        with write_beside(self.path) as path:
            parquet.write_table(pyarrow.table(columns), path)
