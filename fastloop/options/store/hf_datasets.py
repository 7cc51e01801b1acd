"""`store=hf_datasets`: one Arrow file of Hugging Face datasets, with a column for each leaf."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.utils import _pytree as pytree

from fastloop.core.optional_libraries import Library
from fastloop.core.types import BadData, Tree, Unsupported, option
from fastloop.data.store_leaves import structure_text

LIBRARY = Library("datasets", "store=hf_datasets", "pip install datasets")
ROWS, LAYOUT = "rows.arrow", "layout.json"
"""Names of the Arrow file, and of the file with the dtypes and the structure of its leaves."""
EXACT = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "float32")
"""Dtypes of which the torch format of datasets loses nothing: its numbers are int64 or float32."""
MOST_DIMENSIONS = 5
"""Maximum number of dimensions of a leaf's row: datasets has types up to Array5D."""


@dataclass(frozen=True)
class ArrowRows:
    """An Arrow file, mapped into memory, and the leaves that its columns hold."""

    dataset: Any
    """The Hugging Face Dataset over the mapped file."""
    dtypes: list[torch.dtype]
    """dtype of each leaf when it was written."""
    structure: Any
    """torch's TreeSpec of a sample."""

    def tree(self, columns: dict[str, torch.Tensor]) -> Tree:
        """The batch of these columns, in the dtypes that were written.

        columns: number of a leaf, as text -> its rows in torch format.
        """
        leaves = [columns[str(number)].to(dtype) for number, dtype in enumerate(self.dtypes)]
        return pytree.tree_unflatten(leaves, self.structure)


@option
class HfDatasetsStore:
    """A single Arrow file, as `Dataset.save_to_disk` would write it, with a column for each leaf.

    Leaf k is the column `k`. A row of a column is a value, a list of fixed length, or an array from
    `Array2D` to `Array5D`.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""

    def check_installed(self) -> None:
        """Raise Unsupported if the library datasets is not installed."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:  # noqa: ARG002
        """Write the chunks, one after another, to the folder's Arrow file.

        Raises Unsupported if datasets is not installed, for dtypes that are not in EXACT, and for
        rows of more than MOST_DIMENSIONS dimensions.
        """
        datasets = LIBRARY.load()
        chunks = iter(chunks)
        first = next(chunks)
        leaves, structure = pytree.tree_flatten(first)
        features = {str(number): _feature(datasets, leaf) for number, leaf in enumerate(leaves)}
        dtypes = [_name(leaf) for leaf in leaves]
        text = structure_text(structure, "store=hf_datasets")
        (folder / LAYOUT).write_text(json.dumps({"dtypes": dtypes, "structure": text}))
        writer = datasets.arrow_writer.ArrowWriter(
            path=str(folder / ROWS), features=datasets.Features(features)
        )
        for columns in map(_columns, chain([first], chunks)):
            writer.write_batch(columns)
        writer.finalize()

    def open(self, folder: Path) -> ArrowRows:
        """The rows of the folder's Arrow file, mapped into memory.

        Raises Unsupported if datasets is not installed, and BadData for files of another store.
        """
        datasets = LIBRARY.load()
        try:
            layout = json.loads((folder / LAYOUT).read_text())
            structure = pytree.treespec_loads(layout["structure"])
            dtypes = [getattr(torch, name) for name in layout["dtypes"]]
            dataset = datasets.Dataset.from_file(str(folder / ROWS))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadData(f"{folder}: not written by store=hf_datasets: {error}") from error
        return ArrowRows(dataset, dtypes, structure)


def _name(leaf: torch.Tensor) -> str:
    return str(leaf.dtype).removeprefix("torch.")


def _feature(datasets: Any, leaf: torch.Tensor) -> Any:
    """The type that datasets has for the rows of a leaf; raises Unsupported if it has none."""
    name = _name(leaf)
    shape = tuple(leaf.shape[1:])
    if name not in EXACT:
        raise Unsupported(f"store=hf_datasets can't hold {name}: its torch format does not keep it")
    if len(shape) > MOST_DIMENSIONS:
        raise Unsupported(f"store=hf_datasets can't hold {len(shape)} dimensions; store=npy can")
    if not shape:
        return datasets.Value(name)
    if len(shape) == 1:
        return datasets.Sequence(datasets.Value(name), length=shape[0])
    return getattr(datasets, f"Array{len(shape)}D")(shape, name)


def _columns(chunk: Tree) -> dict[str, Any]:
    return {str(number): leaf.numpy() for number, leaf in enumerate(pytree.tree_leaves(chunk))}
