"""Running, an epoch with batches made by Python: it delivers and counts them, and ends the threads.

The native core counts its batches itself, see native_epochs.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastloop.fastloader.checkpoint import EpochProgress
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.epoch_iterators import SharedBatches
from fastloop.fastloader.failed_batch import FailedBatch

LEAVE_S = 5.0
"""Maximum seconds that the end of an epoch waits for a thread, or a process, to finish its batch.
After that, a process is terminated. A thread is left behind: it ends when its batch is finished,
and the batch is not delivered."""
INTERRUPTED_S = 0.5
"""Seconds in place of LEAVE_S after a KeyboardInterrupt, or if a process of the epoch has died. The
time is short because a Dataset may block forever."""


@dataclass(frozen=True)
class Running:
    """An epoch that is being loaded: threads, processes or the loop make its batches in groups."""

    results: Generator[Any, None, None]
    """Yields a result for each group; its close() ends the threads."""
    receive: Callable[[Any], Sequence[Tree]]
    """A function that returns the batches of a result's group; called in the loop's thread."""
    end: Callable[[], None]
    """A function that ends the epoch's processes; called when the threads have ended."""

    def deliver(
        self,
        progress: EpochProgress,
        finish: Callable[[], None],
        draw_for: Callable[[int], None] | None,
    ) -> Iterator[Tree]:
        """Return an iterator over the batches, which counts them; its close() ends the threads.

        progress: its `delivered` is increased with each batch. A failed batch is counted only when
        the next batch is asked for. So if the program ends with the error, it resumes with the
        failed batch.

        finish: called after the last batch. draw_for: called before each batch is delivered, with
        the number of the batch, from 1 on; None: not needed.

        In a fork of this process, next() raises RuntimeError: a fork has none of the threads, and
        may have copied a lock that a thread held.
        """
        return SharedBatches(self._deliver(progress, finish, draw_for, os.getpid()))

    def _deliver(
        self,
        progress: EpochProgress,
        finish: Callable[[], None],
        draw_for: Callable[[int], None] | None,
        pid: int,
    ) -> Generator[Tree | FailedBatch, None, None]:
        """Yield the batches, see `deliver`.

        pid: id of the process that began the epoch. No other process may continue it.
        """
        number = 0
        try:
            _refuse_fork(pid)
            for result in self.results:
                batch = None
                batches = self.receive(result)
                del result
                if not batches:
                    # A group without batches is an iterable's end.
                    break
                for batch in batches:
                    has_failed = isinstance(batch, FailedBatch)
                    progress.delivered += not has_failed
                    number += 1
                    if draw_for is not None:
                        draw_for(number)
                    yield batch
                    # The loop may have forked while it had the batch, so each batch is followed by
                    # this check.
                    _refuse_fork(pid)
                    progress.delivered += has_failed
                # Otherwise the last batch would stay in memory while the next ones are made.
                del batches, batch
            finish()
        finally:
            self.results.close()
            self.end()


def _refuse_fork(pid: int) -> None:
    """Raise RuntimeError in any process but the one with this id."""
    if os.getpid() != pid:
        problem = f"process {pid} has begun this epoch of FastLoader, and {os.getpid()} is its fork"
        raise RuntimeError(f"{problem}: iterate over the loader again in the fork")
