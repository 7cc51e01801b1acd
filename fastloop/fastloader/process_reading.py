"""Read a map-style Dataset by processes, which is faster if its code holds the interpreter's lock.

This module is the loader's side: it starts and ends the processes, and asks them for batches. The
code that the processes run is in reader_process.py.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import sys
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch.multiprocessing
from torch._utils import ExceptionWrapper

from fastloop.core.exit_status import describe_exit
from fastloop.core.fork_garbage import leave_garbage_to_parent
from fastloop.fastloader.anonymous_file import receive_memory
from fastloop.fastloader.batching import Groups
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource, DatasetSource
from fastloop.fastloader.failed_batch import FailedBatch, try_batch
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.loader_settings import WorkerProcesses
from fastloop.fastloader.reader_process import ReaderSettings, Task, run_reader
from fastloop.fastloader.running_epoch import INTERRUPTED_S, LEAVE_S
from fastloop.fastloader.sample_draws import SampleDraws
from fastloop.fastloader.shared_batch import read_batch
from fastloop.fastloader.torch_draws import TORCHS_PREFETCH_FACTOR

MOST_LENT = 8
"""Maximum number of a process's batches that stay in shared memory while the program keeps them.
Further ones are copied, so that a program that keeps all batches runs out of neither files nor
shared memory."""


@dataclass(eq=False)
class Reader:
    """A process that reads samples, with the memory of its batches.

    A memory is in one of four states: asked for (a batch is being made in it), lent (the program
    has the batch), free, or left to a fork.
    """

    process: BaseProcess
    connection: Connection
    memories: dict[int, mmap.mmap] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    """Numbers of memories that nothing refers to, which may be used again."""
    lent: set[int] = field(default_factory=set)
    """Numbers of memories with a batch that the program has."""
    asked: list[int | None] = field(default_factory=list)
    """The memory of each batch that the process has yet to make, in order; None: new memory."""
    left: list[int] = field(default_factory=list)
    """Numbers of memories that must not be used again, as forks may have their batches. The next
    task that the process gets contains these numbers."""

    def __post_init__(self) -> None:
        """Add this reader to READERS."""
        READERS.add(self)

    def ask(self, draws: SampleDraws, indices: np.ndarray) -> None:
        """Ask for a batch; raises OSError if the process has ended."""
        memory = self.free.pop() if self.free else None
        self.asked.append(memory)
        left = self.left
        self.left = []
        self.connection.send(Task(draws, indices, memory, left))

    def receive(self) -> Tree | FailedBatch:
        """The next batch, or its error; raises EOFError or OSError if the process has ended."""
        reply = self.connection.recv()
        asked = self.asked.pop(0)
        if isinstance(reply, ExceptionWrapper):
            if asked is not None:
                # The process has forgotten the memory of a batch that has failed.
                del self.memories[asked]
            return try_batch(reply.reraise)
        if reply.is_new:
            if asked is not None:
                # The memory was too small: the process has made another one, and forgotten this.
                del self.memories[asked]
            self.memories[reply.memory] = receive_memory(self.connection)
        return read_batch(self._lend(reply.memory, reply.begin + reply.nbytes), *reply[2:])

    def _lend(self, number: int, used: int) -> memoryview:
        """The memory of a batch, which is free again when nothing refers to the returned view; or a
        copy.
        """
        memory = self.memories[number]
        # The program keeps many batches already: this one is copied, and its memory is free.
        if len(self.lent) >= MOST_LENT:
            self.free.append(number)
            return np.array(np.frombuffer(memory, np.uint8, used)).data
        view = memoryview(memory)
        self.lent.add(number)
        # Tensors keep the view alive, as their buffer. At exit nothing needs to be taken back.
        weakref.finalize(view, self._take_back, number).atexit = False
        return view

    def _take_back(self, number: int) -> None:
        # leave_to_fork() may have removed the number meanwhile.
        with suppress(KeyError):
            self.lent.remove(number)
            self.free.append(number)

    def leave_to_fork(self) -> None:
        """Never use the memory of lent batches again: a fork has these batches as long as it
        lives."""
        for number in list(self.lent):
            # The batch may have been dropped meanwhile: then no fork has it.
            with suppress(KeyError):
                self.lent.remove(number)
                self.memories.pop(number)
                self.left.append(number)


READERS: weakref.WeakSet[Reader] = weakref.WeakSet()
"""The readers of all loaders. Before this process forks, `leave_to_fork` of each is called."""


def _leave_to_fork() -> None:
    for reader in list(READERS):
        reader.leave_to_fork()


# This runs in the parent before the fork. After it, a process could already be writing a new batch
# to memory that the fork has, too.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_leave_to_fork)


class ReaderPool:
    """Running processes; they end when it is closed or collected, or with the interpreter."""

    def __init__(self, readers: Sequence[Reader], timeout_s: float) -> None:
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

        Raises RuntimeError at once if any of the processes has ended, or after the timeout.
        """
        reader = self.readers[number]
        try:
            if not reader.connection.poll():
                self._wait([reader.connection])
            return reader.receive()
        except (EOFError, OSError) as error:
            # When the interpreter ends, the connection no longer blocks, or is closed. Any other
            # OSError is one of memory that can't be mapped.
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
        # All processes are watched: the batches of one that has died would be missing later.
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
        # The pool was closed, because the interpreter ends while a thread waits for a batch.
        if not self.close.alive:
            return SystemExit()
        return RuntimeError(_describe_end(number, self.readers[number]))


def _describe_end(number: int, reader: Reader) -> str:
    # The exit status is known shortly after the end of the connection.
    reader.process.join(LEAVE_S)
    code = reader.process.exitcode
    advice = "; the kernel does that if memory runs out" if code == -signal.SIGKILL else ""
    named = f"FastLoader worker process {number} (pid {reader.process.pid})"
    return f"{named} has ended: {describe_exit(code)}{advice}"


def _end(readers: Sequence[Reader], pid: int) -> None:
    """Ask each process to end after its present batch; terminate those that do not end in time."""
    if os.getpid() != pid:
        # A fork has its parent's processes, but is not their parent.
        return
    is_broken = any(not reader.process.is_alive() for reader in readers)
    is_interrupted = isinstance(sys.exception(), KeyboardInterrupt)
    patience = INTERRUPTED_S if is_interrupted or is_broken else LEAVE_S
    for reader in readers:
        with suppress(OSError):
            # A process that reads nothing for long must not keep this one waiting.
            os.set_blocking(reader.connection.fileno(), False)
            reader.connection.send(None)
    for reader in readers:
        reader.process.join(patience)
        for end in (reader.process.terminate, reader.process.kill):
            if reader.process.is_alive():
                # One process has used up the patience: the others get no more.
                patience = 0
                end()
                reader.process.join(INTERRUPTED_S)
    # The connections are closed last: a thread that still waits for a batch learns of the end from
    # its process.
    for reader in readers:
        reader.connection.close()
        reader.memories.clear()


@dataclass
class ProcessReading:
    """A loader's processes, which start with an epoch and end with it unless they persist.

    Raises ValueError if this system can't start them.
    """

    settings: WorkerProcesses
    in_order: bool = True
    """False: batches are received as they get ready."""
    idle: ReaderPool | None = None
    """Processes of an epoch that has ended, kept for the next one."""

    def __post_init__(self) -> None:
        if os.name == "nt":
            number = self.settings.num_workers
            allowed = f"num_threads={number} reads it by threads"
            raise ValueError(f"num_workers={number} on Windows: {allowed}")
        # An unknown start method is an error now, and not in the first epoch.
        _context(self.settings)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle no processes: they belong to this process."""
        return self.__dict__ | {"idle": None}

    def start(self, source: DatasetSource, groups: Groups, draws: SampleDraws) -> ProcessBatches:
        """The batches of the groups, by processes that are started, unless some are idle."""
        pool = self.idle
        self.idle = None
        # Processes of the parent can't be used in its fork.
        if pool is None or pool.pid != os.getpid():
            pool = _start_pool(self.settings, source, draws)
        ahead = self.settings.num_workers * (
            self.settings.prefetch_factor or TORCHS_PREFETCH_FACTOR
        )
        return ProcessBatches(self, pool, draws, groups, ahead)

    def finish(self, pool: ReaderPool) -> None:
        """Keep the processes of a whole epoch, or end them."""
        if self.settings.persistent_workers and self.idle is None:
            self.idle = pool
        else:
            pool.close()


class ProcessBatches:
    """The batches of a running epoch, which one thread at a time asks for: in order, or as they get
    ready."""

    def __init__(
        self,
        reading: ProcessReading,
        pool: ReaderPool,
        draws: SampleDraws,
        groups: Groups,
        ahead: int,
    ) -> None:
        self._reading = reading
        self._pool = pool
        self._draws = draws
        self._groups = groups
        self._ahead = ahead
        self._asked = self._received = 0
        self._in_order = reading.in_order
        self._indices: list[deque[np.ndarray]] = [deque() for _ in pool.readers]
        """For each process, the indices of the batches that it has yet to make."""
        self._is_whole = False

    def groups(self) -> Groups:
        """Yield each group once the processes have been asked for it and the next `ahead` groups.

        The loop's thread iterates over the groups, and so draws the indices. An error of the
        sampler is raised after the groups that were drawn before it.
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
        """End the processes, or keep them if they persist and have made all batches."""
        if self._is_whole and self._received == self._asked:
            self._reading.finish(self._pool)
        else:
            self._pool.close()


def start_reading(
    reading: ProcessReading | None,
    source: BatchSource | StreamBatches,
    groups: Groups,
    draws: SampleDraws,
) -> tuple[BatchSource | StreamBatches | ProcessBatches, Groups]:
    """The source of an epoch's batches, and its groups. Both are returned unchanged unless
    processes read a Dataset."""
    if reading is None or not isinstance(source, DatasetSource):
        return source, groups
    batches = reading.start(source, groups, draws)
    return batches, batches.groups()


def _start_pool(settings: WorkerProcesses, source: DatasetSource, draws: SampleDraws) -> ReaderPool:
    """Processes that have started. If one of them can't start, the others are ended."""
    context = _context(settings)
    readers: list[Reader] = []
    pool = ReaderPool(readers, settings.timeout)
    try:
        for number in range(settings.num_workers):
            reader = ReaderSettings(
                number=number,
                num_readers=settings.num_workers,
                seed=draws.worker_seed(number),
                worker_init_fn=settings.worker_init_fn,
                code=source.code,
                is_unbatched=source.is_unbatched,
                reads_lists=source.reads_lists,
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
    """Start a process, which closes its copies of `others`; raises ValueError if it can't start."""
    here, there = context.Pipe()
    is_fork = context.get_start_method() == "fork"
    # A fork has copies of all of the parent's open connections, which it closes, see run_reader.
    # Other start methods hand over only pickled arguments.
    arguments = there, settings, (*others, here) if is_fork else ()
    process = context.Process(target=run_reader, args=arguments, daemon=True)
    try:
        with leave_garbage_to_parent():
            process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(_describe(context, settings, error)) from error
    # From here on only the child holds the other end of the pipe: if it dies, recv() raises
    # EOFError here.
    there.close()
    return Reader(process, here)


def _describe(context: Any, settings: ReaderSettings, error: Exception) -> str:
    name = type(settings.code.dataset).__name__
    method = context.get_start_method()
    problem = f"processes get {name}, collate_fn and worker_init_fn pickled by {method!r}"
    return f"{problem}, and that fails ({type(error).__name__}: {error})"
