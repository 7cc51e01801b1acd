"""Decoded groups of rows of a file that is read in groups, as Parquet's row groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np


class RowGroups:
    """Rows gathered from groups, of which the last ones that were decoded are kept."""

    def __init__(
        self, first_rows: np.ndarray, decode: Callable[[int], list[np.ndarray]], most: int
    ) -> None:
        """first_rows: int64 (groups + 1,), the first row of each group, and the number of rows.

        decode: the columns of a group, by its number. most: the number of groups that are kept.
        """
        self._first_rows = first_rows
        self._decode = decode
        self._most = most
        self._groups: OrderedDict[int, list[np.ndarray]] = OrderedDict()

    def gather(self, indices: Sequence[int]) -> list[np.ndarray]:
        """The columns of these rows, in their order, in newly allocated memory."""
        wanted = np.asarray(indices)
        numbers = np.searchsorted(self._first_rows, wanted, side="right") - 1
        leaves: list[np.ndarray] = []
        for number in np.unique(numbers).tolist():
            columns = self._group(number)
            if not leaves:
                shapes = [(len(wanted), *column.shape[1:]) for column in columns]
                pairs = zip(shapes, columns, strict=True)
                leaves = [np.empty(shape, column.dtype) for shape, column in pairs]
            places = np.flatnonzero(numbers == number)
            rows = wanted[places] - self._first_rows[number]
            for leaf, column in zip(leaves, columns, strict=True):
                leaf[places] = column[rows]
        return leaves

    def clear(self) -> None:
        """Free the groups."""
        self._groups.clear()

    def _group(self, number: int) -> list[np.ndarray]:
        if number not in self._groups:
            while len(self._groups) >= self._most:
                self._groups.popitem(last=False)
            self._groups[number] = self._decode(number)
        self._groups.move_to_end(number)
        return self._groups[number]
