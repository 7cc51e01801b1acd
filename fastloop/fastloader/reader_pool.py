"""ReaderPool, the processes that read a Dataset together: their start, their batches, their end."""

from __future__ import annotations

import os
import signal
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch.multiprocessing

from fastloop.core.exit_status import describe_exit
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import DatasetSource
from fastloop.fastloader.failed_batch import FailedBatch
from fastloop.fastloader.loader_settings import WorkerProcesses
from fastloop.fastloader.reader_handle import ReaderHandle, start_reader
from fastloop.fastloader.reader_process import ReaderSettings
from fastloop.fastloader.running_epoch import INTERRUPTED_S, LEAVE_S
from fastloop.fastloader.sample_draws import SampleDraws


class ReaderPool:
    """Running processes that read samples.

    The processes end when the pool is closed or garbage-collected, or when the interpreter ends.
    """

    def __init__(self, readers: Sequence[ReaderHandle], timeout_s: float) -> None:
        """Take charge of processes that are running already.

        readers: the handles of the processes; process n is `readers[n]`. The pool keeps the
        sequence itself, so a handle that is appended later belongs to the pool, too. timeout_s:
        maximum time that the pool waits for a batch, in seconds; 0: the pool waits without limit.
        """
        self.readers = readers
        self.timeout_s = timeout_s
        self.pid = os.getpid()
        self.close = weakref.finalize(self, _end, readers, self.pid)

    def ask(self, number: int, draws: SampleDraws, indices: np.ndarray) -> None:
        """Ask a process for a batch; raises RuntimeError if it has ended."""
        reader = self.readers[number]
        try:
            reader.ask(draws, indices)
        except OSError as error:
            raise self._end_of(number) from error

    def receive(self, number: int) -> Tree | FailedBatch:
        """The next batch of a process, or the error in its place.

        While the batch is not ready, raises RuntimeError as soon as any of the processes has ended,
        or after the timeout.
        """
        reader = self.readers[number]
        try:
            if not reader.connection.poll():
                self._wait([reader.connection])
            return reader.receive()
        except (EOFError, OSError) as error:
            # When the interpreter ends, the pool makes the connection non-blocking, and closes it.
            # Until then, an OSError other than ConnectionResetError is raised for memory that can't
            # be mapped.
            if self.close.alive and not isinstance(error, EOFError | ConnectionResetError):
                raise
            raise self._end_of(number) from error

    def least_busy(self) -> int:
        """The number of the process that has the fewest batches to make."""
        return min(range(len(self.readers)), key=lambda number: len(self.readers[number].asked))

    def wait_for_any(self) -> int:
        """The number of a process that has made a batch; raises RuntimeError as `receive` does."""
        asked = {
            reader.connection: number for number, reader in enumerate(self.readers) if reader.asked
        }
        try:
            return asked[self._wait([*asked])]
        except OSError as error:
            # When the interpreter ends, the connections are closed.
            raise self._end_of(next(iter(asked.values()))) from error

    def _wait(self, connections: list[Connection]) -> Connection:
        """The first of these connections that has something to receive."""
        # All processes are watched, because the batches of a process that has died would be missing
        # later.
        sentinels = [other.process.sentinel for other in self.readers]
        ready = wait([*connections, *sentinels], self.timeout_s or None)
        if not ready:
            problem = f"no batch within timeout={self.timeout_s:g} seconds"
            raise RuntimeError(f"FastLoader: {problem}; 0 waits without limit")
        for connection in connections:
            if connection in ready:
                return connection
        ended = next(number for number, each in enumerate(sentinels) if each in ready)
        raise self._end_of(ended)

    def _end_of(self, number: int) -> BaseException:
        """The exception for a process that has ended."""
        # The pool is closed: the interpreter ends while a thread waits for a batch.
        if not self.close.alive:
            return SystemExit()
        return RuntimeError(_describe_end(number, self.readers[number]))


def _describe_end(number: int, reader: ReaderHandle) -> str:
    """The error message for a process that has ended, with its exit status."""
    # The exit status is known shortly after the end of the connection.
    reader.process.join(LEAVE_S)
    code = reader.process.exitcode
    advice = "; the kernel does that if memory runs out" if code == -signal.SIGKILL else ""
    named = f"FastLoader worker process {number} (pid {reader.process.pid})"
    return f"{named} has ended: {describe_exit(code)}{advice}"


def _end(readers: Sequence[ReaderHandle], pid: int) -> None:
    """Ask each process to end after its present batch; terminate those that do not end in time.

    pid: the id of the process that has started the readers.
    """
    if os.getpid() != pid:
        # A fork of this process inherits the handles, but must not end its parent's processes.
        return
    is_broken = any(not reader.process.is_alive() for reader in readers)
    is_interrupted = isinstance(sys.exception(), KeyboardInterrupt)
    patience = INTERRUPTED_S if is_interrupted or is_broken else LEAVE_S
    for reader in readers:
        with suppress(OSError):
            # If a process takes no messages for long, sending must not block this process.
            os.set_blocking(reader.connection.fileno(), False)
            reader.connection.send(None)
    for reader in readers:
        reader.process.join(patience)
        for end in (reader.process.terminate, reader.process.kill):
            if reader.process.is_alive():
                # After one process has used up the patience, the others get no more time.
                patience = 0
                end()
                reader.process.join(INTERRUPTED_S)
    # The connections are closed last, because a thread that still waits for a batch notices the end
    # of the process.
    for reader in readers:
        reader.connection.close()
        reader.memories.clear()


def start_pool(settings: WorkerProcesses, source: DatasetSource, draws: SampleDraws) -> ReaderPool:
    """Start `settings.num_workers` processes that read the source, and return their pool.

    draws: gives each process the seed of its generators. Raises ValueError if a process can't
    start; the processes that have started are ended then.
    """
    context = open_context(settings)
    readers: list[ReaderHandle] = []
    pool = ReaderPool(readers, settings.timeout)
    try:
        for number in range(settings.num_workers):
            reader_settings = ReaderSettings(
                number=number,
                num_readers=settings.num_workers,
                seed=draws.worker_seed(number),
                worker_init_fn=settings.worker_init_fn,
                code=source.code,
                is_unbatched=source.is_unbatched,
                reads_lists=source.reads_lists,
            )
            connections = [reader.connection for reader in readers]
            readers.append(start_reader(context, reader_settings, connections))
    except BaseException:
        pool.close()
        raise
    return pool


def open_context(settings: WorkerProcesses) -> Any:
    """The context of multiprocessing that starts the processes.

    Raises ValueError if the settings name an unknown start method.
    """
    context = settings.multiprocessing_context
    is_given = context is not None and not isinstance(context, str)
    return context if is_given else torch.multiprocessing.get_context(context)
