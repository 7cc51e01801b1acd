"""Rows of an open file, read a batch at a time; every process opens the file for itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol

import optree

from fastloop.types import Tree


class BatchReader(Protocol):
    """A file that is open."""

    def read(self, indices: Sequence[int], /) -> Tree:
        """The batch of these rows, in this order, in memory of its own."""
        ...

    def close(self) -> None:
        """Close the file; nothing is read afterwards."""
        ...


class BatchRows:
    """A map-style dataset with `__getitems__`, which gives a whole batch: nothing is to collate.

    The file is opened at the first read, and again in every other process: an open file neither
    travels to a worker nor is read in a process that was forked from the one that has opened it.
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
        if self._reader is None or self._process != os.getpid():
            self._reader, self._process = self._open_reader(), os.getpid()
        return self._reader.read(indices)

    def __reduce__(self) -> tuple[type[BatchRows], tuple[Callable[[], BatchReader], int]]:
        return BatchRows, (self._open_reader, self._num_samples)

    def close(self) -> None:
        """Close the file if this process has opened it."""
        if self._reader is not None and self._process == os.getpid():
            self._reader.close()
        self._reader = None
