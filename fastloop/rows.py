"""A map-style view of a tree of arrays: one row of every leaf a sample."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fastloop.types import Tree, Unsupported


class Rows:
    """Samples whose leaves are rows: a tensor that shares the array's memory, or a numpy scalar.

    In another process the arrays are opened again, never copied: numpy pickles a memory map as all
    of its bytes.
    """

    def __init__(self, open_arrays: Callable[[], Tree]) -> None:
        self._open_arrays = open_arrays
        self._row, self._num_samples = _row_getter(open_arrays())

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Tree:
        return self._row(index)

    def __reduce__(self) -> tuple[type[Rows], tuple[Callable[[], Tree]]]:
        return Rows, (self._open_arrays,)


def _row_getter(tree: Tree) -> tuple[Callable[[int], Tree], int]:
    """A function from index to sample, built once so that no sample pays for walking the tree."""
    if isinstance(tree, np.ndarray):
        if tree.ndim > 1:
            return (lambda index: torch.from_numpy(tree[index])), len(tree)
        return (lambda index: tree[index]), len(tree)
    if isinstance(tree, dict):
        getters = {key: _row_getter(value) for key, value in tree.items()}
        (num_samples,) = {count for _, count in getters.values()}
        rows = [(key, row) for key, (row, _) in getters.items()]
        return (lambda index: {key: row(index) for key, row in rows}), num_samples
    if type(tree) in (tuple, list):
        build = type(tree)
        counted = [_row_getter(value) for value in tree]
        (num_samples,) = {count for _, count in counted}
        row_list = [row for row, _ in counted]
        return (lambda index: build([row(index) for row in row_list])), num_samples
    raise Unsupported(
        f"rows of {type(tree).__name__} are not known; "
        "tuples, lists and dicts of arrays are, as store@loader.store=npy gives them"
    )
