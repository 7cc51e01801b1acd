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
EXACT = ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "float32")
"""Dtypes that lose nothing in the torch format, which has only int64 and float32."""
MOST_DIMENSIONS = 5
"""Maximum number of dimensions of a row, which is the number of datasets.Array5D."""


@dataclass(frozen=True)
class ArrowRows:
    """An Arrow file, mapped into memory, and the leaves that its columns hold."""

    dataset: Any
    dtypes: list[torch.dtype]
    structure: Any
    """torch's TreeSpec of a sample."""

    def tree(self, columns: dict[str, torch.Tensor]) -> Tree:
        """The batch of these columns, in the dtypes that were stored."""
        leaves = [columns[str(number)].to(dtype) for number, dtype in enumerate(self.dtypes)]
        return pytree.tree_unflatten(leaves, self.structure)


@option
class HfDatasetsStore:
    """The file that `Dataset.save_to_disk` would write: leaf k is the column `k`, of values, lists
    of fixed length, or `Array2D` to `Array5D`."""

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""

    def check_installed(self) -> None:
        """Raise Unsupported without datasets."""
        LIBRARY.check()

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:  # noqa: ARG002
        """Append chunk after chunk; raises Unsupported without datasets, and for dtypes and shapes
        that the torch format does not keep."""
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
        """The mapped file; raises Unsupported without datasets, and BadData for another file."""
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
    """The datasets feature that describes the rows of a leaf; raises Unsupported without one."""
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
