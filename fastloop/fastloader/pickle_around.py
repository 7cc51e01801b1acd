"""Pickle a value without some of its objects, which are handed over in another way."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

NumberLeaf = Callable[[Any], int | None]
"""Returns the number of an object that is kept out of a pickle; None: the object is pickled."""


def pickle_around(value: Any, number_leaf: NumberLeaf) -> bytes:
    """The pickled value without the objects that have a number."""
    file = BytesIO()
    _LeafPickler(file, number_leaf).dump(value)
    return file.getvalue()


def unpickle_around(data: bytes, leaves: Sequence[Any]) -> Any:
    """The value that `pickle_around` has pickled.

    leaves: the objects that take the places of those that were left out, by their numbers.
    """
    return _LeafUnpickler(BytesIO(data), leaves).load()


# These are classes of their own, because Python 3.13.0 ignores persistent_id and persistent_load if
# they are attributes of an instance of pickle's classes.
class _LeafPickler(pickle.Pickler):
    """A Pickler that asks a function for the number of each object."""

    def __init__(self, file: BytesIO, number_leaf: NumberLeaf) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._number_leaf = number_leaf

    def persistent_id(self, obj: Any) -> int | None:
        return self._number_leaf(obj)


class _LeafUnpickler(pickle.Unpickler):
    """An Unpickler that takes the objects that were left out from a sequence."""

    def __init__(self, file: BytesIO, leaves: Sequence[Any]) -> None:
        super().__init__(file)
        self._leaves = leaves

    def persistent_load(self, pid: int) -> Any:
        return self._leaves[pid]
