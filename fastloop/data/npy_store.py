"""Stores of .npy files: the format of store=npy and write_store, and folders of write_store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any, BinaryIO, Literal

import numpy as np
from torch.utils import _pytree as pytree

from fastloop.core.types import BadData, Tree
from fastloop.core.user_code import error_line
from fastloop.data.rows import array_of, structure_text

STRUCTURE = "structure.json"
FORMAT_NAME, ALTERNATIVE = "store=npy", "store=torch_storage"
"""Names for messages: of this format, and of one that also holds the dtypes that numpy lacks."""

IMAGES = "images.json"
"""Name of the file of figures in a store of encoded images."""
COMPARED = 16
"""Number of samples, spread evenly, that must be equal for a store to count as the same data."""


def write_npy(folder: Path, chunks: Iterable[Tree], num_samples: int | None) -> None:
    """Write chunks, in order, as a .npy file for each leaf.

    num_samples: None if it is known only at the end. Without a chunk nothing is written.
    Raises Unsupported for dtypes that numpy does not have.
    """
    # Plain writes, and no memory map: its dirty pages would count as memory of this process.
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
        raise BadData(f"{path}: no structure of a store: {error_line(error)}") from error


def write_header(file: BinaryIO, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Write numpy's header for an array of this shape with the dtype of `array`."""
    descr = np.lib.format.dtype_to_descr(array.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def store_folder(root: Any) -> Path:
    """The absolute path of a store's folder; raises TypeError or ValueError if `root` is no
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


def spread_indices(count: int, number: int = COMPARED) -> list[int]:
    """At most `number` indices below `count`, spread evenly."""
    return sorted(set(np.linspace(0, count - 1, number).round().astype(int).tolist()))
