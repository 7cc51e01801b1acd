"""fastloop.watch: lets fastloop attach see a loop over an iterable that is not a DataLoader."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_folder: str | None = None
"""The folder to which this process records; None: no script is observed."""


def record_watched(folder: str) -> None:
    """Record loops over watched iterables to this folder from now on."""
    global _folder  # noqa: PLW0603 - a process records to one folder
    _folder = folder


def watch(iterable: Iterable[T]) -> Iterable[T]:
    """Return an iterable with the same batches; `fastloop attach` reports the loops over it.

    Without `fastloop attach` the result is the iterable itself. DataLoaders and FastLoaders need no
    `watch`. All of the time in next() counts as `decode`, because its parts are not known.

    iterable: its items are batches. If it is an iterator, the result is an iterator, too.

    >>> for batch in fastloop.watch(read_batches("train.csv")):
    ...     step(batch)
    """
    if _folder is None:
        return iterable
    # This module imports torch, which a script that is not observed need not import.
    from fastloop.explain.attach.watched_loops import watch_loops

    return watch_loops(iterable, Path(_folder))
