"""Decide whether write_store may keep or replace the folder that is at the path of the new store.

Only a store is ever replaced. A store is kept if it holds the same data as the new one, and it is
replaced by other data only with overwrite=True. The callers compare the data, on a few samples.
"""

from __future__ import annotations

import errno
from pathlib import Path

from fastloop.data.npy_store import STRUCTURE
from fastloop.data.stored_images import IMAGES

COMPARED_SAMPLES = 16
"""Number of samples, spread evenly, that must be equal for a store to count as the same data."""


def check_is_store(folder: Path) -> None:
    """Raise FileExistsError for a folder or file that write_store has not written."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    others = {name for name in names - {STRUCTURE, IMAGES} if not name.endswith(".npy")}
    if STRUCTURE not in names or others:
        raise FileExistsError(errno.EEXIST, "not a store, so it is not replaced", str(folder))


def other_data_error(folder: Path, found: str = "a store of other data is here") -> FileExistsError:
    """The error for an existing store that only overwrite=True may replace.

    found: text that says how the existing store differs from the new one.
    """
    return FileExistsError(errno.EEXIST, f"{found}; overwrite=True replaces it", str(folder))
