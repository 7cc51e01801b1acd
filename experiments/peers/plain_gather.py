"""A gather as anybody would write it in C: memcpy row by row, in one thread per core.

Each thread copies its share of the rows, in an order drawn beforehand, into a buffer of one batch;
see loader/gather.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from experiments.peers.loader.gather import address, gather_library
from fastloop.core.cgroup import usable_cores
from fastloop.core.spans import now_ns, seconds_between


@dataclass(frozen=True, eq=False)
class PlainGather:
    """Epochs over rows and their labels."""

    leaves: Sequence[torch.Tensor]
    batch_size: int

    @cached_property
    def _batches(self) -> list[list[torch.Tensor]]:
        """A batch for each thread. The memory has been written to, so that its pages exist."""
        size, cores = self.batch_size, usable_cores()
        return [[leaf[:size].clone() for leaf in self.leaves] for _ in range(cores)]

    def epoch_s(self) -> float:
        """Seconds of an epoch."""
        batches = self._batches
        order = np.random.permutation(len(self.leaves[0]))
        shares = np.array_split(order, len(batches))
        # The library is compiled here, before several threads ask for it.
        gather_library()
        with ThreadPoolExecutor(len(shares)) as threads:
            start = now_ns()
            # list() raises the first error of a thread.
            list(threads.map(self.gather, shares, batches))
            return seconds_between(start, now_ns())

    def gather(self, share: np.ndarray, batch: Sequence[torch.Tensor]) -> None:
        """Copy the rows at int64 indices to the same batch, again and again."""
        for leaf, rows in zip(self.leaves, batch, strict=True):
            sizes = len(share), self.batch_size, leaf[0].nbytes, 0
            gather_library().gather_batches(address(leaf), address(rows), share.ctypes.data, *sizes)
