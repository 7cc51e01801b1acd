"""Memory that is used again once nobody holds any part of it.

Why handing it out is safe: each time, a new numpy view of an array, the *lease*, is given to
torch.from_numpy. The storage of that tensor holds the lease, and every view of it (a batch, a row
of one, its numpy(), what autograd has saved) holds the storage. So the lease dies with the last of
them, in whatever thread; what waits for its end then puts the array back, and not before. No one
has to declare anything, and a batch that is kept is right for as long as it is kept. Each leaf has
arrays of its own: whoever keeps the labels does not keep the images.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from fastloop.fastloader.columns import Kind

_LENT: dict[int, tuple[weakref.ref[np.ndarray], Home, np.ndarray]] = {}
"""Each lease's end, where its array belongs, and that; weakref.finalize does the same in 30 us
instead of 9, behind rows that went through the cache."""


def _come_back(ended: weakref.ref[np.ndarray], lent: dict = _LENT) -> None:  # at the end, too
    _, home, array = lent.pop(id(ended))
    home.put(array)


class Home:
    """Arrays of one leaf that nobody holds; the one that came back last is handed out first, as
    the processor's cache may still have it."""

    def __init__(self, nbytes: int, pinned: bool) -> None:
        self._nbytes, self._pinned, self._rows = nbytes, pinned, 0
        self._arrays: deque[np.ndarray] = deque()
        self.most = 0
        """So many are kept; what comes back beyond that is freed."""

    def take(self, rows: int) -> np.ndarray:
        """(rows or more, nbytes) uint8: one that has come back, or a new one."""
        most = self._rows = max(self._rows, rows)  # a lost update only makes the next one smaller
        try:
            while len(array := self._arrays.pop()) < rows:
                continue
        except IndexError:
            return self._new(most)
        return array

    def put(self, array: np.ndarray) -> None:
        """Take it back."""
        if len(self._arrays) < self.most:
            self._arrays.append(array)

    def lent(self, rows: int, kind: Kind) -> tuple[np.ndarray, torch.Tensor]:
        """(rows, nbytes) uint8, and the same as such a tensor: its own memory until the last view
        of that tensor is gone; then it comes back. The array must not be held longer."""
        array = self.take(rows)
        bytes_ = array[:rows]
        lease = kind.lying(bytes_)
        ref = weakref.ref(lease, _come_back)
        _LENT[id(ref)] = ref, self, array
        with torch.inference_mode(False):  # as in a thread: who makes a block is chance
            return bytes_, kind.tensor(lease)

    def __len__(self) -> int:
        return len(self._arrays)

    def _new(self, rows: int) -> np.ndarray:
        if self._pinned:  # from where a device copies while this process does something else
            return torch.zeros((rows, self._nbytes), dtype=torch.uint8, pin_memory=True).numpy()
        return np.zeros((rows, self._nbytes), np.uint8)


class Pool:
    """A home for the arrays of each leaf."""

    def __init__(self, row_nbytes: Sequence[int], pinned: bool = False) -> None:
        self.row_nbytes = tuple(row_nbytes)
        self.homes = [Home(nbytes, pinned) for nbytes in row_nbytes]

    def keep(self, most: int) -> None:
        """So many arrays of each leaf are kept when nobody holds them."""
        for home in self.homes:
            home.most = most
