"""Data that a dataset generates on first use, in folders without files of the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastloop.core.files import hold_lock, outputs_folder
from fastloop.core.types import BadData

MARKER = ".fastloop-data"
"""Name of a file in each folder outside of outputs/ in which fastloop generates data."""


def create_once(path: Path, make: Callable[[], None], root: str, own_data: str) -> None:
    """Generate a path below the root by calling `make` if it is missing, one process at a time.

    own_data: the settings for data of the user's own, named in the message. Raises BadData, naming
    dataset.root, if the root holds other files or can't be written.
    """
    try:
        if path.exists():
            return
        _claim(Path(root), own_data)
        # looked for again: another process may have made it while this one waited
        with hold_lock(path):
            if not path.exists():
                make()
    except OSError as error:
        raise BadData(f"dataset.root={root}: {error}") from error


def _claim(root: Path, own_data: str) -> None:
    """Mark the folder as one for generated data. Raises BadData if it holds anything else."""
    if root.absolute().is_relative_to(outputs_folder() / "data") or (root / MARKER).exists():
        return
    if root.exists() and any(root.iterdir()):
        reason = "it holds files, and generated data would be written between them"
        allowed = f"allowed: a new or an empty folder; {own_data}"
        raise BadData(f"dataset.root={root}: {reason}; {allowed}")
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).touch()
