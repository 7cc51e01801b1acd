"""`store=npy`: one .npy file a leaf, mapped into memory by numpy."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from torch.utils import _pytree as pytree

from fastloop.rows import array_of, structure_text
from fastloop.types import Tree, option

STRUCTURE = "structure.json"
WHOSE, INSTEAD = "store=npy", "store=torch_storage"


@option
class Npy:
    """`0.npy`, `1.npy`, … with the batch dimension first, and the tree that they are the leaves
    of."""

    root: str

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int | None) -> None:
        """Append chunk after chunk by plain writes: a mapping would count every page as memory.

        num_samples: None where it is known only in the end. Nothing is written without a chunk.
        Raises Unsupported for dtypes that numpy does not have.
        """
        files: list[BinaryIO] = []
        arrays: list[np.ndarray] = []
        count = 0
        with ExitStack() as stack:
            for chunk in chunks:
                leaves, structure = pytree.tree_flatten(chunk)
                arrays = [array_of(leaf, WHOSE, INSTEAD) for leaf in leaves]
                if not files:
                    (folder / STRUCTURE).write_text(structure_text(structure, WHOSE))
                    paths = [folder / f"{number}.npy" for number in range(len(arrays))]
                    files = [stack.enter_context(path.open("wb")) for path in paths]
                    for file, array in zip(files, arrays, strict=True):
                        _write_header(file, array, num_samples or 0)
                for file, array in zip(files, arrays, strict=True):
                    file.write(np.ascontiguousarray(array).data)
                count += len(arrays[0])
            if num_samples is None:
                for file, array in zip(files, arrays, strict=True):
                    file.seek(0)  # numpy leaves room in a header for any number of rows
                    _write_header(file, array, count)

    def open(self, folder: Path, mmap_mode: Literal["r", "c"] = "c") -> Tree:
        """The tree of memory-mapped arrays. "c", copy-on-write: torch wants writable memory, files
        stay; "r" for who never makes a tensor of them."""
        structure = pytree.treespec_loads((folder / STRUCTURE).read_text())
        paths = [folder / f"{number}.npy" for number in range(structure.num_leaves)]
        arrays = [np.load(path, mmap_mode=mmap_mode, allow_pickle=False) for path in paths]
        return pytree.tree_unflatten(arrays, structure)


def _write_header(file: BinaryIO, array: np.ndarray, num_samples: int) -> None:
    shape = (num_samples, *array.shape[1:])
    descr = np.lib.format.dtype_to_descr(array.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
