"""Write and open stores of .npy files, the format of store=npy and of write_store.

Each leaf of a sample has a file with the samples as its first dimension. ragged_npy_store.py adds
leaves that differ in length between samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from torch.utils import _pytree as pytree

from fastloop.core.types import BadData, Tree
from fastloop.core.user_code import error_line
from fastloop.data.store_leaves import array_of, structure_text

STRUCTURE = "structure.json"
"""Name of the file with the structure of a sample, torch's text of its tree."""
FORMAT_NAME, ALTERNATIVE = "store=npy", "store=torch_storage"
"""Names in messages: this format, and a format that also holds the dtypes that numpy lacks."""


def write_npy(folder: Path, chunks: Iterable[Tree], num_samples: int | None) -> None:
    """Write chunks, which are batches of consecutive samples, to a .npy file for each leaf.

    num_samples: number of all samples; None: it is known only after the last chunk. Without a chunk
    nothing is written. Raises Unsupported for dtypes that numpy does not have.
    """
    # The files are written by plain writes, because the dirty pages of a memory map would count as
    # memory of this process.
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
            # numpy pads a header, so a header with more rows fits into the same bytes.
            for file, array in zip(files, arrays, strict=True):
                file.seek(0)
                write_header(file, array, (count, *array.shape[1:]))


def open_npy(folder: Path, mmap_mode: Literal["r", "c"]) -> Tree:
    """The tree of memory-mapped arrays in the folder, read lazily.

    mmap_mode: "r", read-only, or "c", copy-on-write. Arrays that become tensors need "c", because
    torch expects writable memory; the files stay unchanged. Raises BadData, which names the file,
    for a broken file, and FileNotFoundError for a missing one.
    """
    structure = _read_structure(folder / STRUCTURE)
    paths = [folder / f"{number}.npy" for number in range(structure.num_leaves)]
    return pytree.tree_unflatten([map_array(path, mmap_mode) for path in paths], structure)


def map_array(path: Path, mmap_mode: Literal["r", "c"]) -> np.ndarray:
    """The memory-mapped array of a .npy file; raises BadData, which names the file, if the file is
    broken."""
    # numpy loads any file in zip's format as an archive, which is no array, whatever its name.
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
    """The structure of a sample; raises BadData if the file has none."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return pytree.treespec_loads(text)
    # torch does not document its parser's errors, which depend on the broken text.
    except Exception as error:
        raise BadData(f"{path}: not the structure of a store: {error_line(error)}") from error


def write_header(file: BinaryIO, array: np.ndarray, shape: tuple[int, ...]) -> None:
    """Write numpy's header for an array of this shape with the dtype of `array`."""
    descr = np.lib.format.dtype_to_descr(array.dtype)
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
