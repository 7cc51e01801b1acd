"""`store=torch_storage`: the bare bytes of each leaf, mapped into memory as a torch storage."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import torch
from torch.utils import _pytree as pytree

from fastloop.rows import bytes_of, structure_text
from fastloop.types import Tree, option

STRUCTURE = "structure.json"


@option
class TorchStorageStore:
    """`0.bin`, `1.bin`, … with the batch dimension first; `structure.json` has what the bytes do
    not tell: the tree, dtypes and shapes."""

    root: str

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Append chunk after chunk by plain writes: a mapping would count every page as memory."""
        files: list[BinaryIO] = []
        with ExitStack() as stack:
            for chunk in chunks:
                leaves, structure = pytree.tree_flatten(chunk)
                if not files:
                    _describe(folder, structure, leaves, num_samples)
                    paths = [folder / f"{number}.bin" for number in range(len(leaves))]
                    files = [stack.enter_context(path.open("wb")) for path in paths]
                for file, leaf in zip(files, leaves, strict=True):
                    file.write(bytes_of(leaf))

    def open(self, folder: Path) -> Tree:
        """The tree of memory-mapped tensors. Copy-on-write: who writes to them leaves the files
        alone."""
        described = json.loads((folder / STRUCTURE).read_text())
        leaves = [
            _mapped(folder / f"{number}.bin", getattr(torch, dtype), shape)
            for number, (dtype, shape) in enumerate(described["leaves"])
        ]
        return pytree.tree_unflatten(leaves, pytree.treespec_loads(described["tree"]))


def _describe(
    folder: Path, structure: pytree.TreeSpec, leaves: Sequence[torch.Tensor], num_samples: int
) -> None:
    described = {
        "tree": structure_text(structure, "store=torch_storage"),
        "leaves": [
            (str(leaf.dtype).removeprefix("torch."), (num_samples, *leaf.shape[1:]))
            for leaf in leaves
        ],
    }
    (folder / STRUCTURE).write_text(json.dumps(described))


def _mapped(path: Path, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    rows = torch.from_file(str(path), shared=False, size=math.prod(shape), dtype=dtype)
    return rows.view(*shape)
