"""Map-style views of a tree of arrays: sample i is row i of all leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import optree
import torch

from fastloop.core.types import Tree, Unsupported


class Rows:
    """Map-style dataset of the rows of a tree of arrays or tensors.

    A row of an array is a tensor that shares the array's memory, or a numpy scalar. Rows of tensors
    can also be indexed by an index tensor, which copies a batch.

    open_arrays: opens the arrays, here and again in each other process that gets the dataset.
    Raises Unsupported for other leaves than arrays and tensors, and for leaves of several lengths.
    """

    def __init__(self, open_arrays: Callable[[], Tree]) -> None:
        self._open_arrays = open_arrays
        self._arrays = open_arrays()
        self._row, self._num_samples = _row_getter(self._arrays)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int | torch.Tensor) -> Tree:
        # index_select takes half to a sixth of the time of the index operator (60,000 rows of
        # 784 B, 10,240 of 150 KB).
        if isinstance(index, torch.Tensor):
            return optree.tree_map(lambda leaf: leaf.index_select(0, index), self._arrays)
        return self._row(index)

    def __reduce__(self) -> tuple[type[Rows], tuple[Callable[[], Tree]]]:
        # numpy pickles all bytes of a memory map. Tensors in memory, which open_arrays holds, are
        # sent by torch in shared memory.
        return Rows, (self._open_arrays,)


def tensors_of(rows: Tree) -> Tree:
    """The arrays of a store as tensors that share their memory; mapped files are not read.

    Raises Unsupported for leaves that are neither arrays nor tensors.
    """
    return optree.tree_map(_tensor, rows)


def read_into_memory(rows: Tree) -> Tree:
    """Copy the arrays of a store into tensors in memory.

    Raises Unsupported for leaves that are neither arrays nor tensors.
    """
    return optree.tree_map(_copy_to_large_pages, tensors_of(rows))


def _copy_to_large_pages(leaf: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor in memory with large pages, on Linux."""
    # numpy asks for pages of 2 MiB (madvise MADV_HUGEPAGE), while torch gets pages of 4 KiB. With
    # small pages, the lookup of pages takes a third of the time of gathering rows of 3 KB.
    if not leaf.nbytes:
        return leaf.clone()
    memory = torch.from_numpy(np.empty(leaf.nbytes, np.uint8))
    return memory.view(leaf.dtype).view(leaf.shape).copy_(leaf)


def in_memory_rows(rows: Tree) -> Rows:
    """Rows of tensors that are copied from these arrays into memory."""
    return Rows(partial(_identity, read_into_memory(rows)))


def _identity(tree: Tree) -> Tree:
    """The tree itself; unlike a lambda, this function can be pickled."""
    return tree


def _tensor(leaf: Any) -> torch.Tensor:
    """The leaf as a tensor that shares its memory; raises Unsupported for any other leaf."""
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(leaf)
    raise _rows_error(leaf)


def _row_getter(tree: Tree) -> tuple[Callable[[Any], Tree], int]:
    """A function from the index of a row to the sample, and the number of samples."""
    # The function is built once for a tree, so that no sample pays for walking the tree again.
    if isinstance(tree, torch.Tensor):
        return tree.__getitem__, len(tree)
    if isinstance(tree, np.ndarray):
        if tree.ndim > 1:
            return (lambda index: torch.from_numpy(tree[index])), len(tree)
        # default_collate rejects numpy's scalars of uint64, but takes torch's.
        if tree.dtype == np.uint64:
            return torch.from_numpy(tree).__getitem__, len(tree)
        return (lambda index: tree[index]), len(tree)
    if isinstance(tree, dict):
        getters = {key: _row_getter(value) for key, value in tree.items()}
        num_samples = _common_length([count for _, count in getters.values()])
        rows = [(key, row) for key, (row, _) in getters.items()]
        return (lambda index: {key: row(index) for key, row in rows}), num_samples
    if type(tree) in (tuple, list):
        build = type(tree)
        children = [_row_getter(value) for value in tree]
        num_samples = _common_length([count for _, count in children])
        row_list = [row for row, _ in children]
        return (lambda index: build([row(index) for row in row_list])), num_samples
    raise _rows_error(tree)


def _common_length(counts: Sequence[int]) -> int:
    """The length of all these leaves; raises Unsupported, with the lengths, if they differ."""
    if len({*counts}) != 1:
        lengths = ", ".join(map(str, counts)) or "none"
        raise Unsupported(f"rows of leaves of the lengths {lengths}; all leaves need one length")
    return counts[0]


def _rows_error(tree: Any) -> Unsupported:
    """The error for a leaf or a container of another kind."""
    return Unsupported(
        f"rows of {type(tree).__name__} are not supported; "
        "use tuples, lists or dicts of arrays, as those of store@loader.store=npy"
    )
