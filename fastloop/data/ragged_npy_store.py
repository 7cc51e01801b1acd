"""Write and open leaves that differ in length between samples, such as texts, in a store of .npy
files.

Such a leaf has two files: `<number>.npy` with the values of all samples, and `<number>.offsets.npy`
or, for texts, `<number>.text.npy` with their offsets. Row i of the leaf is
values[offsets[i] : offsets[i + 1]]. npy_store.py describes the other leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.types import BadData, SamplesDiffer, Tree
from fastloop.data.npy_store import FORMAT_NAME, STRUCTURE, map_array, write_header
from fastloop.data.ragged import STORES_RAGGED, RaggedTensor
from fastloop.data.store_leaves import array_of, structure_text
from fastloop.fastloader.columns.ragged_rows import RaggedRows

OFFSETS, TEXT = "offsets.npy", "text.npy"
"""Ends of the names of files with offsets: for leaves that are not texts, and for texts."""
CHECKED_ROWS = 1 << 20
"""Number of offsets that are checked at a time."""


def write_ragged(folder: Path, chunks: Iterable[Tree], samples: Any, ragged: bool) -> None:
    """Write chunks with RaggedTensor leaves; leaves of equal lengths become plain arrays.

    samples: the source of the chunks; its `texts` says which leaves are texts. Raises SamplesDiffer
    if other leaves differ in length and `ragged` is False.
    """
    # Which leaves differ in length is known only after the last chunk, so all files stay open until
    # then. Which leaves of a stream are texts is known from its first chunk.
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
    """The tree of a store, with RaggedRows in place of the values that have offsets.

    Raises BadData, naming the file, for offsets that don't rise from 0 to the number of values.
    """
    leaves, structure = pytree.tree_flatten(tree)
    opened = [_open_rows(folder, number, leaf) for number, leaf in enumerate(leaves)]
    return structure.unflatten(opened)


def select_rows(leaf: Any, like: Any, indices: list[int]) -> torch.Tensor | RaggedTensor:
    """Rows of a leaf of a store, in the form of `like`, the same leaf of a batch of the dataset."""
    if not isinstance(like, RaggedTensor):
        plain = leaf.values if isinstance(leaf, RaggedRows) else leaf
        return torch.from_numpy(plain[indices])
    if isinstance(leaf, RaggedRows):
        spans = [(int(leaf.offsets[index]), int(leaf.offsets[index + 1])) for index in indices]
        rows = [torch.from_numpy(np.array(leaf.values[start:end])) for start, end in spans]
    else:
        rows = [torch.from_numpy(np.atleast_1d(leaf[index])) for index in indices]
    return RaggedTensor(torch.cat(rows), torch.tensor([len(row) for row in rows]))


@dataclass
class _LeafFile:
    """The file of a leaf while it is written."""

    path: Path
    file: BinaryIO
    lengths: list[np.ndarray] = field(default_factory=list)
    """Length of each sample's leaf, chunk by chunk; empty if the leaf is a plain tensor."""
    count: int = 0
    """Number of rows that have been written."""
    last: np.ndarray | None = None
    """An array without rows that has the dtype and row shape of the file; None before the first
    chunk."""

    def append(self, leaf: torch.Tensor | RaggedTensor) -> None:
        """Write the leaf's rows."""
        values = leaf
        if isinstance(leaf, RaggedTensor):
            self.lengths.append(leaf.lengths.numpy())
            values = leaf.values
        array = np.ascontiguousarray(array_of(values, FORMAT_NAME, "nothing"))  # pyright: ignore[reportArgumentType]
        if self.last is None:
            write_header(self.file, array, array.shape)
        self.file.write(array.data)
        self.count += len(array)
        self.last = array[:0]

    def finish(self, is_text: bool, ragged: bool) -> None:
        """Write the header, and the offsets if lengths differ."""
        assert self.last is not None
        shape: tuple[int, ...] = (self.count, *self.last.shape[1:])
        lengths = np.concatenate(self.lengths) if self.lengths else None
        # Rows of one length need no offsets: the same bytes are a plain array of one more
        # dimension. Texts keep their offsets, which mark them as texts.
        if lengths is not None and not is_text and (lengths == lengths[0]).all():
            shape = len(lengths), int(lengths[0]), *self.last.shape[1:]
        elif lengths is not None:
            if not is_text and not ragged:
                pair = f"{lengths.min()} to {lengths.max()} rows"
                raise SamplesDiffer(f"samples differ: {pair}; {STORES_RAGGED}")
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
            offsets = map_array(path, "r")
            _check_offsets(path, offsets, len(values) if values.ndim else 0)
            return RaggedRows(values, offsets, is_text)
    return values


def _check_offsets(path: Path, offsets: np.ndarray, count: int) -> None:
    """Raise BadData for offsets that don't rise from 0 to the number of values."""
    is_list = offsets.ndim == 1 and offsets.dtype == np.int64 and len(offsets) > 0
    if not is_list or offsets[0] != 0 or offsets[-1] != count or not _rise(offsets):
        raise BadData(f"{path}: broken offsets: allowed are int64 that rise from 0 to {count}")


def _rise(offsets: np.ndarray) -> bool:
    """True if no offset is smaller than the one before it."""
    # The offsets are compared part by part, each part with the first offset of the next one. A
    # comparison of all offsets at once would need as much memory again for temporary arrays.
    starts = range(0, len(offsets), CHECKED_ROWS)
    parts = (offsets[start : start + CHECKED_ROWS + 1] for start in starts)
    return all(bool((part[1:] >= part[:-1]).all()) for part in parts)
