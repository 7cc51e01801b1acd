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
        indices of the epoch's batches, in groups that are made together. ahead: number of groups
        that the processes get before the loop needs these groups. in_order: True: `take` returns
        batches in the order of the epoch; False: in the order in which the batches get ready.
        keep_pool: called by `end` with the pool, to keep it for the next epoch.
        """
        self._pool = pool
        self._draws = draws
        self._groups = groups
        self._ahead = ahead
        self._in_order = in_order
        self._keep_pool = keep_pool
        self._asked = self._received = 0
        """Numbers of batches that were asked of the processes, and received from them."""
        self._indices: list[deque[np.ndarray]] = [deque() for _ in pool.readers]
        """For each process, the indices of each batch that was asked of it, but not received."""
        self._is_whole = False
        """True once the processes were asked for all batches of the epoch."""

    def groups(self) -> Groups:
        """Yield each group once the processes are asked for it and for the next `ahead` groups.

        The loop's thread iterates over the groups, so the sampler draws the indices in that thread.
        An error of the sampler is raised after the groups that were drawn before the error.
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
        # If the loop leaves an epoch early, this line is not reached. The pool is then not kept,
        # because its processes are still making batches that nobody takes.
        self._is_whole = True
        yield from asked

    def _ask(self, group: Sequence[np.ndarray]) -> None:
        """Ask the processes for the batches of a group."""
        for indices in group:
            number = self._asked % len(self._pool.readers)
            # If any order will do, a process that is busy with a long batch gets no further ones.
            if not self._in_order:
                number = self._pool.least_busy()
            self._indices[number].append(indices)
            self._pool.ask(number, self._draws, indices)
            self._asked += 1

    def take(self, count: int) -> tuple[list[Tree | FailedBatch], list[np.ndarray]]:
        """The next `count` batches, and the indices of each.

        A FailedBatch takes the place of a batch that could not be made. Raises RuntimeError if a
        process has ended, or if no batch comes within the pool's timeout.
        """
        taken = [self._receive() for _ in range(count)]
        return [batch for batch, _ in taken], [indices for _, indices in taken]

    def _receive(self) -> tuple[Tree | FailedBatch, np.ndarray]:
        """The next batch and its indices."""
        # The processes are asked for batches in turn. Batches that are received in the same turn
        # come in the order of the epoch.
        number = self._received % len(self._pool.readers)
        if not self._in_order:
            number = self._pool.wait_for_any()
        batch = self._pool.receive(number)
        self._received += 1
        return batch, self._indices[number].popleft()

    def end(self) -> None:
        """Call `keep_pool` if all batches of the epoch were taken; otherwise close the pool."""
        if self._is_whole and self._received == self._asked:
            self._keep_pool(self._pool)
        else:
            self._pool.close()
