"""`store=torch_storage`: the raw bytes of each leaf, memory-mapped as a torch storage."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, ClassVar

import torch
from torch.utils import _pytree as pytree

from fastloop.core.types import Tree, option
from fastloop.data.store_leaves import bytes_of, structure_text

STRUCTURE = "structure.json"
"""Name of the file with the tree, and with the dtype and the shape of each leaf."""


@option
class TorchStorageStore:
    """A file of raw bytes for each leaf (`0.bin`, `1.bin`, …), which is read by a memory map.

    `structure.json` has the tree, the dtypes and the shapes.
    """

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Write the chunks, one after another, by plain writes.

        Writing through a memory map would count every page as memory of this process.
        num_samples: number of samples in all chunks together.
        """
        files: list[BinaryIO] = []
        with ExitStack() as stack:
            for chunk in chunks:
                leaves, structure = pytree.tree_flatten(chunk)
                if not files:
                    _write_structure(folder, structure, leaves, num_samples)
                    paths = [folder / f"{number}.bin" for number in range(len(leaves))]
                    files = [stack.enter_context(path.open("wb")) for path in paths]
                for file, leaf in zip(files, leaves, strict=True):
                    file.write(bytes_of(leaf))

    def open(self, folder: Path) -> Tree:
        """The tree of memory-mapped tensors.

        The maps are copy-on-write: writing to the tensors does not change the files.
        """
        structure = json.loads((folder / STRUCTURE).read_text())
        leaves = [
            _map_tensor(folder / f"{number}.bin", getattr(torch, dtype), shape)
            for number, (dtype, shape) in enumerate(structure["leaves"])
        ]
        return pytree.tree_unflatten(leaves, pytree.treespec_loads(structure["tree"]))


def _write_structure(
    folder: Path, structure: pytree.TreeSpec, leaves: Sequence[torch.Tensor], num_samples: int
) -> None:
    """Write STRUCTURE for num_samples samples. leaves: the leaves of one chunk."""
    content = {
        "tree": structure_text(structure, "store=torch_storage"),
        "leaves": [
            (str(leaf.dtype).removeprefix("torch."), (num_samples, *leaf.shape[1:]))
            for leaf in leaves
        ],
    }
    (folder / STRUCTURE).write_text(json.dumps(content))


def _map_tensor(path: Path, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The file's bytes as a tensor, mapped into memory."""
    rows = torch.from_file(str(path), shared=False, size=math.prod(shape), dtype=dtype)
    return rows.view(*shape)
