"""Write and open stores of .npy files, the format of store=npy and of write_store.

Each leaf of a sample has a file. A leaf that differs in length between samples has a file of values
and a file of offsets: its row i is values[offsets[i] : offsets[i + 1]].
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.types import BadData, SamplesDiffer, Tree
from fastloop.core.user_code import error_line
from fastloop.data.ragged import STORES_RAGGED, RaggedTensor
from fastloop.data.store_leaves import array_of, structure_text
from fastloop.fastloader.columns.ragged_rows import RaggedRows

STRUCTURE = "structure.json"
"""Name of the file with the tree of a sample."""
FORMAT_NAME, ALTERNATIVE = "store=npy", "store=torch_storage"
"""Names for messages: of this format, and of a format that also holds dtypes that numpy lacks."""

OFFSETS, TEXT = "offsets.npy", "text.npy"
"""Ends of the names of files with offsets: for leaves that are not texts, and for texts."""
CHECKED_ROWS = 1 << 20
"""Number of offsets that are checked at a time."""
IMAGES = "images.json"
"""Name of the file of figures in a store of encoded images."""
COMPARED_SAMPLES = 16
"""Number of samples, spread evenly, that must be equal for a store to count as the same data."""


def write_npy(folder: Path, chunks: Iterable[Tree], num_samples: int | None) -> None:
    """Write chunks, in order, as a .npy file for each leaf.

    num_samples: None if it is known only at the end. Without a chunk nothing is written.
    Raises Unsupported for dtypes that numpy does not have.
    """
    # Files are written instead of memory maps, because the dirty pages of a memory map would count
    # as memory of this process.
    files: list[BinaryIO] = []
    arrays: list[np.ndarray] = []
    count = 0
    with ExitStack() as stack:
        for chunk in chunks:
            leaves, structure = pytree.tree_flatten(chunk)
            arrays = [array_of(leaf, FORMAT_NAME, ALTERNATIVE) for leaf in leaves]
            if not files:
                (folder / STRUCTURE).write_text(structure_text(structure, FORMAT_NAME))
                paths = [folder / f"{number}.npy" for number in range(len(arrays))]
                files = [stack.enter_context(path.open("wb")) for path in paths]
                for file, array in zip(files, arrays, strict=True):
                    write_header(file, array, (num_samples or 0, *array.shape[1:]))
            for file, array in zip(files, arrays, strict=True):
                file.write(np.ascontiguousarray(array).data)
            count += len(arrays[0])
        if num_samples is None:
            # numpy pads its header so that the number of rows can grow in place.
            for file, array in zip(files, arrays, strict=True):
                file.seek(0)
                write_header(file, array, (count, *array.shape[1:]))


def open_npy(folder: Path, mmap_mode: Literal["r", "c"]) -> Tree:
    """The tree of memory-mapped arrays in the folder, read lazily.

    mmap_mode: "c", copy-on-write, for arrays that become tensors: torch needs writable memory, and
    the files stay unchanged; "r" for other arrays. Raises BadData that names a broken file.
    """
    structure = _read_structure(folder / STRUCTURE)
    paths = [folder / f"{number}.npy" for number in range(structure.num_leaves)]
    return pytree.tree_unflatten([map_array(path, mmap_mode) for path in paths], structure)


def map_array(path: Path, mmap_mode: Literal["r", "c"]) -> np.ndarray:
    """The array of a .npy file, memory-mapped; raises BadData that names the file if it is
    broken."""
    # numpy loads any file of zip's format as an archive, whatever its name.
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError, OverflowError) as error:
        raise BadData(f"{path}: a broken .npy file: {error_line(error)}") from error
    if not isinstance(array, np.ndarray):
        raise BadData(f"{path}: a broken .npy file: it is an archive")
    return array


def _read_structure(path: Path) -> pytree.TreeSpec:
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return pytree.treespec_loads(text)
    # torch's parser documents no errors, and raises whatever the broken text leads to.
    except Exception as error:
        raise BadData(f"{path}: not the structure of a store: {error_line(error)}") from error


def write_header(file: BinaryIO, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Write numpy's header for an array of this shape with the dtype of `array`."""
    descr = np.lib.format.dtype_to_descr(array.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def store_folder(root: Any) -> Path:
    """The absolute path of a store's folder; raises TypeError or ValueError if `root` is not a
    path."""
    if not isinstance(root, str | os.PathLike):
        raise TypeError(f"root={short_repr(root)}: allowed is the path of a folder")
    # Path("") is the working folder, which nobody means to replace.
    if not os.fspath(root):
        raise ValueError("root='': allowed is the path of a folder")
    return Path(root).absolute()


def check_is_store(folder: Path) -> None:
    """Raise FileExistsError for a folder or file that write_store has not written."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = {name for name in names - {STRUCTURE, IMAGES} if not name.endswith(".npy")}
    if STRUCTURE not in names or others:
        raise FileExistsError(errno.EEXIST, "not a store, so it is not replaced", str(folder))


def other_data_error(folder: Path, found: str = "a store of other data is here") -> FileExistsError:
    """The error for a store that may not be replaced; found: how it differs from the new one."""
    return FileExistsError(errno.EEXIST, f"{found}; overwrite=True replaces it", str(folder))


def check_lengths(folder: Path, tree: Any) -> None:
    """Raise BadData if the leaves of a store's opened tree differ in length."""
    leaves = pytree.tree_leaves(tree)
    if any(getattr(leaf, "ndim", 1) == 0 for leaf in leaves):
        raise BadData(f"{folder}: a broken store: a leaf has no rows")
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) > 1:
        raise BadData(f"{folder}: a broken store: its leaves have {lengths} rows")


def spread_indices(count: int, number: int = COMPARED_SAMPLES) -> list[int]:
    """At most `number` indices below `count`, spread evenly."""
    return sorted(set(np.linspace(0, count - 1, number).round().astype(int).tolist()))


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
