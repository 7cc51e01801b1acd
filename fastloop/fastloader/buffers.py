"""Memory that is reused once no tensor refers to any part of it.

Why reuse is safe: each time, a new numpy view of an array, the *lease*, is passed to
torch.from_numpy. The storage of that tensor holds the lease, and every view of the tensor (a batch,
a row of one, its numpy(), what autograd has saved) holds the storage. So the lease is destroyed
with the last of them, in whatever thread; its weak reference's callback then returns the array, and
not before. Nobody has to release anything, and a batch stays valid for as long as it is kept. Each
column has its own arrays, so keeping the labels does not keep the images.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from fastloop.fastloader.columns.column import SampleSpec

_LEASES: dict[int, tuple[weakref.ref[np.ndarray], ColumnBuffers, np.ndarray]] = {}
"""id of a lease's weak reference -> that reference, where the array belongs, the array.
weakref.finalize does the same in 30 us instead of 9 after rows have gone through the cache."""


# `leases` as a default: at the interpreter's exit the module's globals may be gone
def _return_array(ended: weakref.ref[np.ndarray], leases: dict = _LEASES) -> None:
    _, buffers, array = leases.pop(id(ended))
    buffers.put(array)


class ColumnBuffers:
    """Free arrays of one column, last in first out: the processor's cache may still have the
    last."""

    def __init__(self, nbytes: int, pinned: bool) -> None:
        self._nbytes, self._pinned, self._rows = nbytes, pinned, 0
        self._arrays: deque[np.ndarray] = deque()
        self.capacity = 0
        """The number of free arrays that are kept; further ones are freed."""

    def take(self, rows: int) -> np.ndarray:
        """Return a (rows or more, nbytes) uint8 array, free or new."""
        most = self._rows = max(self._rows, rows)  # a lost update only makes the next array smaller
        try:
            while len(array := self._arrays.pop()) < rows:
                continue
        except IndexError:
            return self._allocate(most)
        return array

    def put(self, array: np.ndarray) -> None:
        """Keep the array for later use, or free it."""
        if len(self._arrays) < self.capacity:
            self._arrays.append(array)

    def lease(self, rows: int, spec: SampleSpec) -> tuple[np.ndarray, torch.Tensor]:
        """Return (rows, nbytes) uint8 and the same memory as a tensor.

        The memory is private to the tensor until its last view is gone, and is then reused. Do not
        keep the array longer than the tensor.
        """
        array = self.take(rows)
        memory = array[:rows]
        lease = spec.view_array(memory)
        ref = weakref.ref(lease, _return_array)
        _LEASES[id(ref)] = ref, self, array
        # off as in a new thread: whether the consumer or a thread makes a group must not matter
        with torch.inference_mode(False):
            return memory, spec.wrap_array(lease)

    def __len__(self) -> int:
        return len(self._arrays)

    def _allocate(self, rows: int) -> np.ndarray:
        if self._pinned:  # a device copies from pinned memory asynchronously
            return torch.zeros((rows, self._nbytes), dtype=torch.uint8, pin_memory=True).numpy()
        return np.zeros((rows, self._nbytes), np.uint8)


class BufferPool:
    """The buffers of all columns of a source."""

    def __init__(self, row_nbytes: Sequence[int], pinned: bool = False) -> None:
        self.row_nbytes, self._pid = tuple(row_nbytes), os.getpid()
        self.columns = [ColumnBuffers(nbytes, pinned) for nbytes in row_nbytes]

    def is_usable(self, row_nbytes: Sequence[int]) -> bool:
        """True for rows of these sizes, in the process that has made the pool and not in a fork."""
        return self.row_nbytes == tuple(row_nbytes) and self._pid == os.getpid()

    def set_capacity(self, capacity: int) -> None:
        """Set how many free arrays of each column are kept."""
        for buffers in self.columns:
            buffers.capacity = capacity
