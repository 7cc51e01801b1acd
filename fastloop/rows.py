"""A map-style view of a tree of arrays: a row of every leaf a sample, or several a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import optree
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from fastloop.protocols import Store
from fastloop.types import Prepared, Tree, Unsupported


class Rows:
    """Samples whose leaves are rows.

    Of an array: a tensor that shares the array's memory, or a numpy scalar. Of tensors, an index
    tensor makes a batch with memory of its own: by index_select, which takes half to a sixth of the
    time that brackets take for the same (60,000 rows of 784 B, 10,240 of 150 KB).
    In another process the arrays are opened again, never copied: numpy pickles a memory map as all
    of its bytes. Tensors in memory travel as torch sends them, by shared memory.
    """

    def __init__(self, open_arrays: Callable[[], Tree]) -> None:
        self._open_arrays = open_arrays
        self._arrays = open_arrays()
        self._row, self._num_samples = _row_getter(self._arrays)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int | torch.Tensor) -> Tree:
        if isinstance(index, torch.Tensor):
            return optree.tree_map(lambda leaf: leaf.index_select(0, index), self._arrays)
        return self._row(index)

    def __reduce__(self) -> tuple[type[Rows], tuple[Callable[[], Tree]]]:
        return Rows, (self._open_arrays,)


def tensors_of(rows: Tree) -> Tree:
    """The arrays of a store as tensors that share their memory, mapped files still unread.

    Raises Unsupported for what is neither an array nor a tensor.
    """
    return optree.tree_map(_tensor, rows)


def read_into_memory(rows: Tree) -> Tree:
    """The arrays of a store as tensors that are read whole, in memory of their own.

    Raises Unsupported for what is neither an array nor a tensor.
    """
    return optree.tree_map(torch.clone, tensors_of(rows))


def bytes_of(leaf: torch.Tensor) -> memoryview:
    """The bytes of a tensor on the host, row after row, whatever its dtype."""
    return leaf.contiguous().view(-1).view(torch.uint8).numpy().data


def array_of(leaf: torch.Tensor, whose: str, instead: str) -> np.ndarray:
    """The tensor's memory as an array; raises Unsupported, with what to use instead, for a dtype
    that numpy does not have."""
    try:
        return leaf.numpy()
    except TypeError as error:
        kind = str(leaf.dtype).removeprefix("torch.")
        raise Unsupported(f"{whose} holds no {kind}; {instead} does") from error


def structure_text(structure: pytree.TreeSpec, whose: str) -> str:
    """A tree as text, which torch's treespec_loads reads; raises Unsupported where that would give
    another one: for named tuples, and for keys that JSON does not have."""
    try:
        text = pytree.treespec_dumps(structure)
        same = pytree.treespec_loads(text) == structure
    except (NotImplementedError, TypeError, ValueError):
        same, text = False, ""
    if not same:
        why = "tuples, lists and dicts whose keys are strings or integers; loader=raw takes any"
        raise Unsupported(f"{whose} holds trees of {why}")
    return text


def memory_rows(rows: Tree) -> Rows:
    """Rows of these arrays, which are read into memory first; their leaves are tensors."""
    return Rows(partial(_itself, read_into_memory(rows)))


def batches_of(
    store: Store | None, prepared: Prepared, in_memory: bool
) -> Callable[[np.ndarray], Tree]:
    """A function from int64 indices to a batch in memory of its own, for a library that has threads
    but no way of its own to gather.

    Of a store: rows by np.take, which copies whole rows and releases the GIL, from the mapped files
    or, in_memory, read before. Without one: samples decoded in the thread that calls it, and
    collated as torch does. Raises Unsupported for rows that are neither arrays nor tensors.
    """
    if store is None:
        samples = prepared.dataset.open()
        return lambda indices: default_collate([samples[index] for index in indices.tolist()])
    rows = store.open(prepared.folder)
    leaves, structure = optree.tree_flatten((read_into_memory if in_memory else tensors_of)(rows))

    def gather(indices: np.ndarray) -> Tree:
        return optree.tree_unflatten(structure, [_taken(leaf, indices) for leaf in leaves])

    return gather


def _taken(leaf: torch.Tensor, indices: np.ndarray) -> torch.Tensor:
    if leaf.dtype == torch.bfloat16:  # which numpy does not have
        return leaf.index_select(0, torch.from_numpy(indices))
    return torch.from_numpy(np.take(leaf.numpy(), indices, axis=0))


def _itself(tree: Tree) -> Tree:
    return tree


def _tensor(leaf: Any) -> torch.Tensor:
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(leaf)
    raise _not_known(leaf)


def _row_getter(tree: Tree) -> tuple[Callable[[Any], Tree], int]:
    """A function from index to sample, built once so that no sample pays for walking the tree."""
    if isinstance(tree, torch.Tensor):
        return tree.__getitem__, len(tree)
    if isinstance(tree, np.ndarray):
        if tree.ndim > 1:
            return (lambda index: torch.from_numpy(tree[index])), len(tree)
        if tree.dtype == np.uint64:  # default_collate makes no tensor of numpy's
            return torch.from_numpy(tree).__getitem__, len(tree)
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
    raise _not_known(tree)


def _not_known(tree: Any) -> Unsupported:
    return Unsupported(
        f"rows of {type(tree).__name__} are not known; "
        "tuples, lists and dicts of arrays are, as store@loader.store=npy gives them"
    )
