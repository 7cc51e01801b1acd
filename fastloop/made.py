"""Data that a dataset makes itself, on first use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastloop.files import locked
from fastloop.types import BadData


def made_once(path: Path, make: Callable[[], None], root: str) -> None:
    """Return when the path is there; `make` makes it where it is missing, one process at a time.

    Raises BadData, naming dataset.root, where it can't be written.
    """
    try:
        with locked(path):
            if not path.exists():
                make()
    except OSError as error:
        raise BadData(f"dataset.root={root}: {error}") from error
