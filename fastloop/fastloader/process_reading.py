"""Reading of a map-style Dataset by processes, which pays if its code holds the interpreter's
lock."""

from __future__ import annotations

import os
import pickle
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.multiprocessing

from fastloop.fastloader.batching import Groups
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import DatasetSource
from fastloop.fastloader.failed_batch import FailedBatch
from fastloop.fastloader.loader_settings import LoaderSettings
from fastloop.fastloader.reader_pool import Reader, ReaderPool
from fastloop.fastloader.reader_process import ReaderSettings, run_reader
from fastloop.fastloader.sample_draws import SampleDraws
from fastloop.fastloader.worker_processes import WorkerProcesses, open_workers

AHEAD = 2
"""Batches that each process makes ahead if prefetch_factor is not given, as with DataLoader."""


@dataclass
class ProcessReading:
    """A loader's processes, which start with an epoch and end with it unless they persist."""

    settings: WorkerProcesses
    idle: ReaderPool | None = None
    """Processes of an epoch that has ended, kept for the next one."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle no processes: they belong to this process."""
        return self.__dict__ | {"idle": None}

    def start(self, source: DatasetSource, groups: Groups, draws: SampleDraws) -> ProcessBatches:
        """The batches of the groups, by processes that are started, unless some are idle."""
        pool, self.idle = self.idle, None
        # Processes of the parent can't be used in its fork.
        if pool is None or pool.pid != os.getpid():
            pool = _start_pool(self.settings, source, draws)
        ahead = self.settings.num_workers * (self.settings.prefetch_factor or AHEAD)
        return ProcessBatches(self, pool, draws, groups, ahead)

    def finish(self, pool: ReaderPool) -> None:
        """Keep the processes of a whole epoch, or end them."""
        if self.settings.persistent_workers and self.idle is None:
            self.idle = pool
        else:
            pool.close()


class ProcessBatches:
    """The batches of a running epoch, which one thread at a time asks for, in order."""

    def __init__(
        self,
        reading: ProcessReading,
        pool: ReaderPool,
        draws: SampleDraws,
        groups: Groups,
        ahead: int,
    ) -> None:
        self._reading, self._pool, self._draws = reading, pool, draws
        self._groups, self._ahead = groups, ahead
        self._asked = self._received = 0
        self._is_whole = False

    def groups(self) -> Groups:
        """The groups, with the batches of the next ones asked for.

        Read in the loop's thread, which draws the indices. An error of the sampler is raised at its
        turn.
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
        # Not reached if the epoch is left early: then batches that nobody wants are being made.
        self._is_whole = True
        yield from asked

    def _ask(self, group: Sequence[np.ndarray]) -> None:
        for indices in group:
            self._pool.ask(self._asked % len(self._pool.readers), self._draws, indices)
            self._asked += 1

    def batches(self, group: Sequence[np.ndarray]) -> list[Tree | FailedBatch]:
        """The batches of the next group; raises RuntimeError if a process has ended."""
        return [self._receive() for _ in group]

    def _receive(self) -> Tree | FailedBatch:
        # Batches are dealt to the processes in turn, and so are they received: the order is kept.
        number = self._received % len(self._pool.readers)
        batch = self._pool.receive(number)
        self._received += 1
        return batch

    def end(self) -> None:
        """End the processes, or keep them if they persist and have made all batches."""
        if self._is_whole and self._received == self._asked:
            self._reading.finish(self._pool)
        else:
            self._pool.close()


def open_reading(settings: LoaderSettings, source: Any) -> ProcessReading | None:
    """The processes that read a Dataset, if any do.

    Rows are read by threads, which need no interpreter's lock, and so is a Dataset that threads may
    share.
    """
    processes = open_workers(settings)
    if processes is None or not isinstance(source, DatasetSource) or source.is_thread_safe:
        return None
    return _check(processes)


def _check(processes: WorkerProcesses) -> ProcessReading:
    """The processes of these settings. Raises ValueError if the system has no such processes."""
    if os.name == "nt":
        allowed = f"num_threads={processes.num_workers} reads it by threads"
        raise ValueError(f"num_workers={processes.num_workers} on Windows: {allowed}")
    # Raises for an unknown start method now, not in the first epoch.
    _context(processes)
    return ProcessReading(processes)


def start_reading(
    reading: Any, source: Any, groups: Groups, draws: SampleDraws
) -> tuple[Any, Groups]:
    """The source of an epoch's batches and its groups; as they are, unless processes read a
    Dataset."""
    if not isinstance(reading, ProcessReading):
        return source, groups
    batches = reading.start(source, groups, draws)
    return batches, batches.groups()


def _start_pool(settings: WorkerProcesses, source: DatasetSource, draws: SampleDraws) -> ReaderPool:
    """Processes that have started. If one can't, those that did are ended."""
    context = _context(settings)
    readers: list[Reader] = []
    pool = ReaderPool(readers, settings.timeout)
    try:
        for number in range(settings.num_workers):
            reader = ReaderSettings(
                number,
                settings.num_workers,
                draws.worker_seed(number),
                settings.worker_init_fn,
                source.dataset,
                source.collate_fn,
                source.is_unbatched,
                source.reads_lists,
            )
            readers.append(_start(context, reader, [other.connection for other in readers]))
    except BaseException:
        pool.close()
        raise
    return pool


def _context(settings: WorkerProcesses) -> Any:
    """multiprocessing's context; raises ValueError for an unknown start method."""
    context = settings.multiprocessing_context
    is_given = context is not None and not isinstance(context, str)
    return context if is_given else torch.multiprocessing.get_context(context)


def _start(context: Any, settings: ReaderSettings, others: list[Any]) -> Reader:
    here, there = context.Pipe()
    is_fork = context.get_start_method() == "fork"
    # A fork has copies of all of the parent's open connections, which it closes, see run_reader.
    # Other start methods hand over only what is pickled.
    arguments = there, settings, (*others, here) if is_fork else ()
    process = context.Process(target=run_reader, args=arguments, daemon=True)
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(_describe(context, settings, error)) from error
    # Only the process has its end now: when it dies, reading here ends with EOFError.
    there.close()
    return Reader(process, here)


def _describe(context: Any, settings: ReaderSettings, error: Exception) -> str:
    name, method = type(settings.dataset).__name__, context.get_start_method()
    problem = f"processes get {name}, collate_fn and worker_init_fn pickled by {method!r}"
    return f"{problem}, and that fails ({type(error).__name__}: {error})"
