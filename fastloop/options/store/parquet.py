"""`store=parquet`: one Parquet file in row groups, with a column for each leaf, by pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt
from torch.utils import _pytree as pytree

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, option
from fastloop.data.arrow_columns import array_of_column, table_of
from fastloop.data.store_leaves import structure_text

LIBRARY = Library("pyarrow", "store=parquet", "pip install pyarrow")
ROWS, LAYOUT = "rows.parquet", "layout.json"
"""Names of a store's files: the Parquet file, and the shapes and the tree of the leaves."""
ALTERNATIVE = "store=torch_storage"
"""Another store, for an error message about a dtype that Parquet lacks."""


@dataclass(frozen=True)
class ParquetRows:
    """A Parquet file of which only the footer has been read."""

    file: Any
    """pyarrow's ParquetFile."""
    shapes: list[list[int]]
    """Shape of a row of each column."""
    structure: Any
    """torch's TreeSpec of a sample."""
    first_rows: np.ndarray
    """int64 (row groups + 1,): the first row of each group, and the number of rows."""

    def read_group(self, number: int) -> list[np.ndarray]:
        """The decoded columns of a row group, as arrays with a row for each sample."""
        table = self.file.read_row_group(number)
        columns = enumerate(self.shapes)
        return [array_of_column(table.column(index), shape) for index, shape in columns]


@option
class ParquetStore:
    """A Parquet file with a column for each leaf of a sample.

    Leaf k is the column `k`, of values or of lists of fixed length. pyarrow reads and decodes whole
    row groups, so in random order most of a large group is read for nothing.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""
    row_group_rows: PositiveInt
    """Number of rows in a row group."""
    compression: Literal["none", "snappy", "zstd"]
    """Compression of the columns; "none": no compression."""

    def check_installed(self) -> None:
        """Raise Unsupported if pyarrow is not installed."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:  # noqa: ARG002
        """Write the row groups one after another; a chunk and a group are in memory at a time.

        Raises Unsupported if pyarrow is not installed, and for dtypes that Parquet lacks.
        """
        pyarrow = LIBRARY.load()
        parquet = LIBRARY.load("pyarrow.parquet")
        chunks = iter(chunks)
        first = next(chunks)
        leaves, structure = pytree.tree_flatten(first)
        shapes = [list(leaf.shape[1:]) for leaf in leaves]
        text = structure_text(structure, LIBRARY.option)
        (folder / LAYOUT).write_text(json.dumps({"shapes": shapes, "structure": text}))
        tables = (
            table_of(pyarrow, chunk, LIBRARY.option, ALTERNATIVE)
            for chunk in chain([first], chunks)
        )
        # Rows wait here until they fill a row group.
        waiting = []
        first_table = next(tables)
        with parquet.ParquetWriter(
            folder / ROWS, first_table.schema, compression=self.compression
        ) as writer:
            for table in chain([first_table], tables):
                rows = pyarrow.concat_tables([*waiting, table])
                whole = len(rows) - len(rows) % self.row_group_rows
                if whole:
                    writer.write_table(rows[:whole], row_group_size=self.row_group_rows)
                waiting = [rows[whole:]]
            if len(waiting[0]):
                writer.write_table(waiting[0])

    def open(self, folder: Path) -> ParquetRows:
        """The opened file, of which only the footer is read.

        Raises Unsupported if pyarrow is not installed, and BadData if store=parquet has not written
        the file.
        """
        parquet = LIBRARY.load("pyarrow.parquet")
        path = folder / ROWS
        try:
            layout = json.loads((folder / LAYOUT).read_text())
            structure = pytree.treespec_loads(layout["structure"])
            file = parquet.ParquetFile(path, memory_map=True)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadData(f"{path}: not written by store=parquet: {error}") from error
        groups = range(file.metadata.num_row_groups)
        sizes = [file.metadata.row_group(number).num_rows for number in groups]
        return ParquetRows(file, layout["shapes"], structure, np.cumsum([0, *sizes]))
