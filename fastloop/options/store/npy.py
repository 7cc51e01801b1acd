"""`store=npy`: one .npy file per leaf, memory-mapped by numpy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from fastloop.core.types import Tree, option
from fastloop.data.npy_store import open_npy, write_npy


@option
class NpyStore:
    """A memory-mapped .npy file per leaf, with the batch dimension first: `0.npy`, `1.npy`, …"""

    format_version: ClassVar[int] = 1
    root: str
    """Path of the folder that contains all stores."""

    def write(self, folder: Path, chunks: Iterable[Tree], num_samples: int) -> None:
        """Append chunk after chunk; raises Unsupported for dtypes that numpy does not have."""
        write_npy(folder, chunks, num_samples)

    def open(self, folder: Path) -> Tree:
        """The tree of memory-mapped arrays, copy-on-write."""
        return open_npy(folder, "c")
