"""One-dimensional arrays from a user's .npy file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastloop.core.types import BadData


def load_vector(path: Path) -> np.ndarray:
    """The file's one-dimensional array; raises BadData for other contents."""
    try:
        # The file is opened here, because np.load does not close a file that it fails to read.
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadData(f"{path}: not a .npy file: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 1 or not len(array):
        shape = list(getattr(array, "shape", ["an archive"]))
        raise BadData(f"{path}: expected one dimension with at least one value, got {shape}")
    return array
