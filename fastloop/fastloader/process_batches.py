"""ProcessBatches, the batches of one epoch that processes make from a Dataset."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from fastloop.fastloader.batching import Groups
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import FailedBatch
from fastloop.fastloader.reader_pool import ReaderPool
from fastloop.fastloader.sample_draws import SampleDraws


class ProcessBatches:
    """The batches of a running epoch, which processes make.

    One thread at a time takes batches, in the order of the epoch or in the order in which batches
    get ready.
    """

    def __init__(
        self,
        pool: ReaderPool,
        draws: SampleDraws,
        groups: Groups,
        ahead: int,
        *,
        in_order: bool,
        keep_pool: Callable[[ReaderPool], None],
    ) -> None:
        """Prepare an epoch; the processes get their first work when `groups` is iterated over.

        pool: the running processes. draws: the random draws of the epoch's samples. groups: the
        indices of the epoch's batches, in groups. ahead: number of groups that the processes get
        before the loop needs these groups. in_order: True: `take` returns batches in the order of
        the epoch; False: in the order in which batches get ready. keep_pool: called with the pool
        after an epoch of which all batches were taken; after any other epoch, the pool is closed.
        """
        self._pool = pool
        self._draws = draws
        self._groups = groups
        self._ahead = ahead
        self._in_order = in_order
        self._keep_pool = keep_pool
        self._asked = self._received = 0
        self._indices: list[deque[np.ndarray]] = [deque() for _ in pool.readers]
        """For each process, the indices of the batches that it has yet to make."""
        self._is_whole = False

    def groups(self) -> Groups:
        """Yield each group after the processes have been asked for its batches and for the batches
        of the next `ahead` groups.

        The loop's thread iterates over the groups, and so draws the indices. An error of the
        sampler is raised after the groups that were drawn before the error.
        """
        asked: deque[list[np.ndarray]] = deque()
        try:
            for group in self._groups:
                self._ask(group)
                asked.append(group)
                if len(asked) > self._ahead:
                    yield asked.popleft()
        except Exception:
            yield from asked
            raise
        # An epoch that is left early does not get here: batches that nobody wants are being made.
        self._is_whole = True
        yield from asked

    def _ask(self, group: Sequence[np.ndarray]) -> None:
        for indices in group:
            number = self._asked % len(self._pool.readers)
            # A process that takes long for a batch gets no further ones meanwhile.
            if not self._in_order:
                number = self._pool.least_busy()
            self._indices[number].append(indices)
            self._pool.ask(number, self._draws, indices)
            self._asked += 1

    def take(self, count: int) -> tuple[list[Tree | FailedBatch], list[np.ndarray]]:
        """The next batches and their indices; raises RuntimeError if a process has ended."""
        taken = [self._receive() for _ in range(count)]
        return [batch for batch, _ in taken], [indices for _, indices in taken]

    def _receive(self) -> tuple[Tree | FailedBatch, np.ndarray]:
        # Batch n is asked of process n modulo the number of processes, and received from the same
        # process: this keeps the order.
        number = self._received % len(self._pool.readers)
        if not self._in_order:
            number = self._pool.wait_for_any()
        batch = self._pool.receive(number)
        self._received += 1
        return batch, self._indices[number].popleft()

    def end(self) -> None:
        """Call keep_pool if all batches of the epoch were taken; close the pool otherwise."""
        if self._is_whole and self._received == self._asked:
            self._keep_pool(self._pool)
        else:
            self._pool.close()
