"""One-dimensional arrays that come in a user's .npy file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastloop.types import BadData


def vector_in(path: Path) -> np.ndarray:
    """The file's array of one dimension; raises BadData where it holds something else."""
    try:
        # Opened here: np.load leaves a file that it can't read open.
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadData(f"{path}: not a .npy file: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 1 or not len(array):
        shape = list(getattr(array, "shape", ["an archive"]))
        raise BadData(f"{path}: one dimension with at least one value is wanted, got {shape}")
    return array
