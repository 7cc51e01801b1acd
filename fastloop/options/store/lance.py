"""`store=lance`: a Lance dataset, with a column for each leaf."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from torch.utils import _pytree as pytree

from fastloop.core.optional_libraries import Library
from fastloop.core.text import first_line
from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.core.user_code import error_line
from fastloop.data.arrow_columns import array_of_column, table_of
from fastloop.data.store_leaves import structure_text

LIBRARY = Library("lance", "store=lance", "pip install pylance")
ROWS, LAYOUT = "rows.lance", "layout.json"
"""Names of the dataset, and of the file with the shapes and the structure of a sample."""
OPTION, ALTERNATIVE = "store=lance", "store=torch_storage"
"""Names of this option, and of one that holds any dtype, for messages."""


@dataclass(frozen=True)
class LanceRows:
    """An opened Lance dataset, of which only the manifest has been read."""

    lance_dataset: Any
    """The dataset as the library `lance` opens it."""
    shapes: list[list[int]]
    """Shape of a row of each column."""
    structure: Any
    """torch's TreeSpec of a sample."""

    def take(self, indices: list[int]) -> list[Any]:
        """The columns of these rows as arrays, with the rows in the order of the indices."""
        table = self.lance_dataset.take(indices)
        return [array_of_column(table.column(str(k)), shape) for k, shape in enumerate(self.shapes)]


@option
class LanceStore:
    """A Lance dataset that `lance.write_dataset` writes, with one column per leaf.

    Leaf k is the column `k`, of values or of lists of fixed length. Lance reads single rows by
    their position, even in a large file.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""

    def check_installed(self) -> None:
        """Raise Unsupported without Lance."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:  # noqa: ARG002
        """Append chunk after chunk to a new dataset.

        Raises Unsupported without Lance, and for dtypes that Lance lacks.
        """
        lance = LIBRARY.load()
        chunks = iter(chunks)
        pyarrow = LIBRARY.load("pyarrow")
        first = next(chunks)
        leaves, structure = pytree.tree_flatten(first)
        shapes = [list(leaf.shape[1:]) for leaf in leaves]
        text = structure_text(structure, OPTION)
        (folder / LAYOUT).write_text(json.dumps({"shapes": shapes, "structure": text}))
        tables = (table_of(pyarrow, chunk, OPTION, ALTERNATIVE) for chunk in chain([first], chunks))
        first_table = next(tables)
        rows = chain([first_table], tables)
        batches = chain.from_iterable(table.to_batches() for table in rows)
        reader = pyarrow.RecordBatchReader.from_batches(first_table.schema, batches)
        try:
            lance.write_dataset(reader, str(folder / ROWS))
        except (OSError, ValueError, NotImplementedError) as error:
            # Lance's error for an Arrow type that it lacks contains "unsupported" or "Unsupported".
            if "nsupported" not in str(error):
                raise
            reason = first_line(error)[:100]
            raise Unsupported(f"{OPTION}: {reason}; {ALTERNATIVE} holds any dtype") from error

    def open(self, folder: Path) -> LanceRows:
        """The opened dataset; no row has been read.

        Raises Unsupported without Lance, and BadData for a folder that this store did not write.
        """
        lance = LIBRARY.load()
        try:
            layout = json.loads((folder / LAYOUT).read_text())
            structure = pytree.treespec_loads(layout["structure"])
            return LanceRows(lance.dataset(str(folder / ROWS)), layout["shapes"], structure)
        except (OSError, ValueError, LookupError, TypeError) as error:
            reason = error_line(error)[:200]
            raise BadData(f"{folder}: not written by store=lance: {reason}") from error
