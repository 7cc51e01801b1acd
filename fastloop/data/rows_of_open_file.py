"""Read the rows of an open file, batch by batch or in groups, as datasets and epochs.

Each process opens the file itself.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Protocol

import numpy as np
import optree
import torch

from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import Epochs, Tree
from fastloop.data.torch_epochs import identity_collate, torch_epochs


class BatchReader(Protocol):
    """An open file from which batches of rows are read."""

    def read(self, indices: Sequence[int], /) -> Tree:
        """The batch of these rows, in this order, in newly allocated memory."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class BatchRows:
    """A map-style dataset of the rows of a file, which are read batch by batch.

    `__getitems__` returns a whole batch, so no collate is needed. Each process opens the file on
    its first read, by calling `open_reader`.
    """

    def __init__(self, open_reader: Callable[[], BatchReader], num_samples: int) -> None:
        self._open_reader = open_reader
        self._num_samples = num_samples
        self._reader: BatchReader | None = None
        self._process = 0

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Tree:
        return optree.tree_map(lambda leaf: leaf[0], self.__getitems__([index]))

    def __getitems__(self, indices: Sequence[int]) -> Tree:
        # If a process forks after it has opened the file, the child would share the position in
        # the file and the library's state with it. So the child opens the file again.
        if self._reader is None or self._process != os.getpid():
            self._reader = self._open_reader()
            self._process = os.getpid()
        return self._reader.read(indices)

    def __reduce__(self) -> tuple[type[BatchRows], tuple[Callable[[], BatchReader], int]]:
        return BatchRows, (self._open_reader, self._num_samples)

    def close(self) -> None:
        """Close the file if this process opened it."""
        if self._reader is not None and self._process == os.getpid():
            self._reader.close()
        self._reader = None


@contextmanager
def reader_epochs(
    open_reader: Callable[[], BatchReader], prepared: PreparedData, plan: Plan
) -> Iterator[Epochs]:
    """Yield epochs of the rows of a file, by a DataLoader; each process that reads rows opens the
    file itself."""
    # A broken file is reported here, and not by a worker.
    open_reader().close()
    rows = BatchRows(open_reader, prepared.num_samples)
    with closing(rows), torch_epochs(rows, plan, collate_fn=identity_collate) as epochs:
        yield epochs


class RowSamples:
    """The rows of an open file as samples, for a dataset.

    `__getitems__` reads all of its rows at once, and returns a list of samples, as torch requires.
    If rows differ in length, a leaf of the batch that the file's reader returns is an array of
    objects: one array for each row.
    """

    def __init__(self, open_reader: Callable[[], BatchReader], num_samples: int) -> None:
        self._rows = BatchRows(open_reader, num_samples)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tree:
        # An object without __iter__ can be iterated over only if an IndexError ends the iteration.
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Tree]:
        leaves, structure = optree.tree_flatten(self._rows.__getitems__(indices))
        rows = zip(*leaves, strict=True)
        return [optree.tree_unflatten(structure, map(_tensor, row)) for row in rows]


def _tensor(leaf: torch.Tensor | np.ndarray) -> torch.Tensor:
    """The leaf as a tensor; an array is copied."""
    return leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf)


class RowGroups:
    """Gathers rows of a file that is decoded in groups; keeps the groups that were used last."""

    def __init__(
        self, first_rows: np.ndarray, decode: Callable[[int], list[np.ndarray]], most: int
    ) -> None:
        """Store the arguments; no group is decoded yet.

        first_rows: int64 (groups + 1,), the first row of each group, and the number of rows.
        decode: returns the columns of the group of that number. most: maximum number of groups that
        are kept.
        """
        self._first_rows = first_rows
        self._decode = decode
        self._most = most
        self._groups: OrderedDict[int, list[np.ndarray]] = OrderedDict()

    def gather(self, indices: Sequence[int]) -> list[np.ndarray]:
        """The columns of these rows in newly allocated memory, in the order of the indices."""
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
        """The columns of a group, decoded if it is not kept.

        If no more groups can be kept, the least recently used group is dropped.
        """
        if number not in self._groups:
            while len(self._groups) >= self._most:
                self._groups.popitem(last=False)
            self._groups[number] = self._decode(number)
        self._groups.move_to_end(number)
        return self._groups[number]
