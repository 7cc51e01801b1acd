"""Folders of write_store: recognizing them, replacing them, comparing their samples."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any

import numpy as np
from torch.utils import _pytree as pytree

from fastloop.core.types import BadData
from fastloop.data.npy_format import STRUCTURE

IMAGES = "images.json"
"""Name of the file of figures in a store of encoded images."""
COMPARED = 16
"""Number of samples, spread evenly, that must be equal for a store to count as the same data."""


def store_folder(root: Any) -> Path:
    """The absolute path of a store's folder; raises TypeError or ValueError if `root` is no
    path."""
    if not isinstance(root, str | os.PathLike):
        raise TypeError(f"root={short_repr(root)}: allowed is the path of a folder")
    # Path("") is the working folder, which nobody means to replace
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
