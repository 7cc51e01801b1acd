"""Rows or texts of several lengths: `RaggedRows`, and a Dataset of trees of them, `RaggedTree`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import Dataset

from fastloop.fastloader.columns.array import array_column
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.columns.mapped_file import MappedFile, find_file, pack_maps, unpack_maps


@dataclass(frozen=True)
class RaggedRows:
    """Rows of several lengths: row i is values[offsets[i]:offsets[i + 1]]."""

    values: np.ndarray
    """The items of all rows, one row after the other."""
    offsets: np.ndarray
    """int64 (number of rows + 1,): the start of each row in `values`, then the end of the last."""
    is_text: bool = False
    """True if rows are texts, and `values` contains their UTF-8 bytes."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> torch.Tensor | str:
        """Return a copy of a row as a tensor, or a text; index -1 is the last row.

        Raises IndexError for an index out of bounds, and OSError if a mapped file has become
        shorter.
        """
        self._check_files()
        place = range(len(self))[index]
        # The row is copied below: a batch may outlive the map, and may be written to.
        row = self.values[self.offsets[place] : self.offsets[place + 1]]
        return bytes(row).decode() if self.is_text else torch.from_numpy(np.array(row))

    def take(self, indices: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor] | list[str]:
        """The rows at `indices`, padded with zeros, and their int64 lengths; or a list of texts.

        The padded tensor has the shape (len(indices), longest length, ...). Index -1 is the last
        row. Raises IndexError and OSError as `__getitem__` does.
        """
        if self.is_text:
            return [self[index] for index in indices]  # pyright: ignore[reportReturnType]
        self._check_files()
        places = np.asarray(indices, np.int64)
        # Row k ends at offsets[k + 1]. For row -1 this would be offsets[0], so negative places are
        # replaced.
        if places.min(initial=0) < 0:
            places = np.where(places < 0, places + len(self), places)
            if places.min() < 0:
                raise IndexError(f"index {places.min() - len(self)} of {len(self)} rows")
        starts, ends = self.offsets[places], self.offsets[places + 1]
        lengths = ends - starts
        shape = len(indices), int(lengths.max(initial=0)), *self.values.shape[1:]
        padded = np.zeros(shape, self.values.dtype)
        for row, start, end in zip(padded, starts.tolist(), ends.tolist(), strict=True):
            row[: end - start] = self.values[start:end]
        return torch.from_numpy(padded), torch.from_numpy(lengths)

    @cached_property
    def _files(self) -> list[MappedFile]:
        """The files from which the arrays are mapped; empty for arrays in memory."""
        files = map(find_file, (self.values, self.offsets))
        return [file for file in files if file is not None]

    def _check_files(self) -> None:
        """Raise OSError if a mapped file has become shorter."""
        for file in self._files:
            file.check()

    def __reduce__(self) -> tuple[Callable[..., RaggedRows], tuple[Any, ...]]:
        """Pickle the regions of mapped arrays in their files; pickle arrays in memory whole."""
        return _reopen, (pack_maps([self.values, self.offsets]), self.is_text)


def _reopen(maps: list[Any], is_text: bool) -> RaggedRows:
    """The unpickled rows; regions of files are mapped again."""
    values, offsets = unpack_maps(maps)
    return RaggedRows(values, offsets, is_text)


@dataclass(frozen=True)
class RaggedTree(Dataset):
    """A Dataset of a tree with ragged leaves, which are RaggedRows."""

    tree: Tree
    """A tree of RaggedRows, tensors, arrays and columns with the same number of rows."""

    def __len__(self) -> int:
        return len(pytree.tree_leaves(self.tree)[0])

    def __getitem__(self, index: int | list[int]) -> Tree:
        """Return the sample at an index, or the batch of a list of indices.

        In a batch, a ragged leaf is (padded, lengths) or a list of texts, see `RaggedRows.take`.
        Index -1 is the last sample, also in a list. Raises IndexError for an index out of bounds.
        """
        # A range refuses indices out of bounds, and counts negative ones from the end.
        places = range(len(self))
        if isinstance(index, list):
            chosen = [places[each] for each in index]
            return pytree.tree_map(lambda leaf: _take(leaf, chosen), self.tree)
        place = places[index]
        return pytree.tree_map(lambda leaf: _row(leaf, place), self.tree)


def is_ragged_tree(source: Tree) -> bool:
    """True for a tree with ragged leaves.

    Raises ValueError if the leaves of such a tree differ in their numbers of rows.
    """
    leaves = pytree.tree_leaves(source)
    if not any(isinstance(leaf, RaggedRows) for leaf in leaves):
        return False
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) > 1:
        raise ValueError(f"a source is a tree of tensors or arrays of one length, got {lengths}")
    return True


def _row(leaf: Any, index: int) -> Any:
    """The row of a leaf at an index, without padding."""
    return leaf[index] if isinstance(leaf, RaggedRows) else _take(leaf, [index])[0]


def _take(leaf: Any, indices: list[int]) -> Any:
    """The rows of a leaf at `indices`, as a batch has them."""
    if isinstance(leaf, RaggedRows):
        return leaf.take(indices)
    column = array_column(leaf) if isinstance(leaf, torch.Tensor | np.ndarray) else leaf
    rows = np.empty((len(indices), column.spec.nbytes), np.uint8)
    column.fill(np.asarray(indices, np.int64), rows)
    return column.spec.view_tensor(rows)
