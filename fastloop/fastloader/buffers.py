"""Memory that is used again once nobody holds any part of it.

Why handing it out is safe: each time, a new numpy view of the buffer, the *lease*, is given to
torch.from_numpy. The storage of that tensor holds the lease, and every view of it (a batch, a row
of one, its numpy(), what autograd has saved) holds the storage. So the lease dies with the last of
them, in whatever thread; its weak reference then puts the buffer back, and not before. No one has
to declare anything, and a batch that is kept is right for as long as it is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import count
from queue import Empty, SimpleQueue

import numpy as np
import torch


class Buffer:
    """Rows of bytes for each leaf of a block."""

    def __init__(self, arrays: Sequence[np.ndarray], home: SimpleQueue[Buffer]) -> None:
        self.arrays = arrays
        """(rows, row_nbytes) uint8 each."""
        self._home = home
        self._leases: list[weakref.ref[np.ndarray]] = []
        self._returns = count(1)

    def lent(self, rows: int) -> list[torch.Tensor]:
        """(rows, row_nbytes) uint8 of each leaf, its own memory until the last view is gone."""
        self._returns = count(1)
        leases = [array[:rows] for array in self.arrays]
        self._leases = [weakref.ref(lease, self._returned) for lease in leases]
        return [torch.from_numpy(lease) for lease in leases]

    def _returned(self, _: object) -> None:
        # Leaves may go in several threads at once: next() is one operation of the interpreter.
        if next(self._returns) == len(self.arrays):
            self._home.put(self)


class Pool:
    """Buffers of one size, that of the longest block so far; as many as were ever needed at once,
    but for those kept for long."""

    def __init__(self, row_nbytes: Sequence[int], pinned: bool = False) -> None:
        self.row_nbytes = tuple(row_nbytes)
        self._rows, self._pinned = 0, pinned
        self._home: SimpleQueue[Buffer] = SimpleQueue()

    def take(self, rows: int) -> Buffer:
        """A buffer of that many rows that nobody holds: one that has come back, or a new one."""
        self._rows = max(self._rows, rows)
        try:
            while len((buffer := self._home.get_nowait()).arrays[0]) < rows:
                continue
        except Empty:
            return Buffer([self._array(nbytes) for nbytes in self.row_nbytes], self._home)
        return buffer

    def _array(self, nbytes: int) -> np.ndarray:
        if self._pinned:  # from where a device copies while this process does something else
            return torch.zeros((self._rows, nbytes), dtype=torch.uint8, pin_memory=True).numpy()
        return np.zeros((self._rows, nbytes), np.uint8)

    def trim(self, most: int) -> None:
        """Give memory back where more buffers lie here than that."""
        while self._home.qsize() > most:
            self._home.get_nowait()
