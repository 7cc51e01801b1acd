"""Stores of samples that differ in length, and of texts: a file of offsets next to the values'."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.types import SamplesDiffer, Tree
from fastloop.data.npy_format import FORMAT_NAME, STRUCTURE, write_header
from fastloop.data.ragged import JaggedTensor
from fastloop.data.rows import array_of, structure_text
from fastloop.fastloader.columns.ragged_rows import RaggedRows

OFFSETS, TEXT = "offsets.npy", "text.npy"


def write_ragged(folder: Path, chunks: Iterable[Tree], samples: Any, ragged: bool) -> None:
    """Write chunks with JaggedTensor leaves; those of equal lengths become plain arrays.

    samples: whose `texts` tells, once read, which leaves are texts. Raises SamplesDiffer where
    others differ in length and `ragged` is False.
    """
    with ExitStack() as stack:
        files: list[_LeafFile] = []
        for chunk in chunks:
            leaves, structure = pytree.tree_flatten(chunk)
            if not files:
                (folder / STRUCTURE).write_text(structure_text(structure, FORMAT_NAME))
                files = [_open_leaf(folder, number, stack) for number in range(len(leaves))]
            for file, leaf in zip(files, leaves, strict=True):
                file.append(leaf)
        for file, is_text in zip(files, samples.texts or [False] * len(files), strict=True):
            file.finish(is_text, ragged)


def open_ragged(folder: Path, tree: Tree) -> Tree:
    """The tree of a store, with RaggedRows in the place of the values that have offsets."""
    leaves, structure = pytree.tree_flatten(tree)
    opened = [_open_rows(folder, number, leaf) for number, leaf in enumerate(leaves)]
    return structure.unflatten(opened)


def select_rows(leaf: Any, like: Any, indices: list[int]) -> torch.Tensor | JaggedTensor:
    """Rows of a leaf of a store, in the form of `like`, which a dataset gave."""
    if not isinstance(like, JaggedTensor):
        plain = leaf.values if isinstance(leaf, RaggedRows) else leaf
        return torch.from_numpy(plain[indices])
    if isinstance(leaf, RaggedRows):
        spans = [(int(leaf.offsets[index]), int(leaf.offsets[index + 1])) for index in indices]
        rows = [torch.from_numpy(np.array(leaf.values[start:end])) for start, end in spans]
    else:
        rows = [torch.from_numpy(np.atleast_1d(leaf[index])) for index in indices]
    return JaggedTensor(torch.cat(rows), torch.tensor([len(row) for row in rows]))


@dataclass
class _LeafFile:
    """The file of a leaf while it is written."""

    path: Path
    file: BinaryIO
    lengths: list[np.ndarray] = field(default_factory=list)
    count: int = 0
    last: np.ndarray | None = None

    def append(self, leaf: torch.Tensor | JaggedTensor) -> None:
        """Write the leaf's rows."""
        values = leaf
        if isinstance(leaf, JaggedTensor):
            self.lengths.append(leaf.lengths.numpy())
            values = leaf.values
        array = np.ascontiguousarray(array_of(values, FORMAT_NAME, "nothing"))  # pyright: ignore[reportArgumentType]
        if self.last is None:
            write_header(self.file, array, array.shape)
        self.file.write(array.data)
        self.count, self.last = self.count + len(array), array[:0]

    def finish(self, is_text: bool, ragged: bool) -> None:
        """Write the header, and the offsets where lengths differ."""
        assert self.last is not None
        shape: tuple[int, ...] = (self.count, *self.last.shape[1:])
        lengths = np.concatenate(self.lengths) if self.lengths else None
        if lengths is not None and not is_text and (lengths == lengths[0]).all():
            shape = len(lengths), int(lengths[0]), *self.last.shape[1:]
        elif lengths is not None:
            if not is_text and not ragged:
                pair = f"{lengths.min()} to {lengths.max()} rows"
                raise SamplesDiffer(f"samples differ: {pair}; ragged=True stores them with offsets")
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
            name = f"{self.path.stem}.{TEXT if is_text else OFFSETS}"
            np.save(self.path.with_name(name), offsets)
        self.file.seek(0)
        write_header(self.file, self.last, shape)


def _open_leaf(folder: Path, number: int, stack: ExitStack) -> _LeafFile:
    path = folder / f"{number}.npy"
    return _LeafFile(path, stack.enter_context(path.open("wb")))


def _open_rows(folder: Path, number: int, values: np.ndarray) -> Any:
    for name, is_text in ((OFFSETS, False), (TEXT, True)):
        path = folder / f"{number}.{name}"
        if path.exists():
            return RaggedRows(values, np.load(path, mmap_mode="r"), is_text)
    return values
