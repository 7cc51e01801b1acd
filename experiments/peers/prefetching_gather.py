"""The limit of gathering with FastLoader's core: rows of the same memory, and nothing else.

One thread per core copies or converts rows, in an order drawn beforehand and with the core's
prefetches, to memory that stays in the cache of its CPU core. No order is drawn, no batch is handed
over, and no tensor is made.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fastloop.core.cgroup import usable_cores
from fastloop.core.spans import now_ns, seconds_between
from fastloop.fastloader.column_source import column_source
from fastloop.fastloader.columns.native_rows import gather_into, open_column

BUFFER_NBYTES = 512 << 10


@dataclass(frozen=True, eq=False)
class PrefetchingGather:
    """Epochs over a tree of tensors, arrays and columns."""

    tree: Any

    @cached_property
    def _columns(self) -> list[Any]:
        return [open_column(column) for column in column_source(self.tree).columns]

    @cached_property
    def _row_nbytes(self) -> list[int]:
        return [column.spec.nbytes for column in column_source(self.tree).columns]

    def epoch_s(self) -> float:
        """Seconds of an epoch."""
        count = len(column_source(self.tree))
        shares = np.array_split(np.random.permutation(count).astype(np.int32), usable_cores())
        with ThreadPoolExecutor(len(shares)) as threads:
            start = now_ns()
            # list() raises the first error of a thread.
            list(threads.map(self._gather, shares))
            return seconds_between(start, now_ns())

    def _gather(self, share: np.ndarray) -> None:
        num_rows = max(1, BUFFER_NBYTES // sum(self._row_nbytes))
        outs = [np.zeros(num_rows * nbytes, np.uint8) for nbytes in self._row_nbytes]
        for start in range(0, len(share), num_rows):
            gather_into(self._columns, share[start : start + num_rows], outs)
