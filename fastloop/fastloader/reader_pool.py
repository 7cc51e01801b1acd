"""The processes that read a Dataset, as their parent sees them, and their end."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import numpy as np
from torch._utils import ExceptionWrapper

from fastloop.core.exit_status import describe_exit
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import FailedBatch, try_batch
from fastloop.fastloader.reader_process import Task
from fastloop.fastloader.sample_draws import SampleDraws
from fastloop.fastloader.shared_batch import read_batch
from fastloop.fastloader.shared_memory import receive_memory

MOST_LENT = 8
"""Batches of a process that may stay in shared memory while the program keeps them; further ones
are copied, so that a program that keeps all batches runs out of neither files nor shared memory."""
LEAVE_S = 5.0
"""The longest that processes are waited for to end their batches, before they are terminated."""
INTERRUPTED_S = 0.5
"""The same after a KeyboardInterrupt or the end of one of them, and then for the termination."""


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
    """The memory of each batch that it has yet to make, in that sequence; None: new memory."""
    left: list[int] = field(default_factory=list)
    """Numbers of memories that must not be used again, as forks may have their batches. The process
    is told with its next task."""

    def __post_init__(self) -> None:
        """Join the readers that are told before a fork."""
        READERS.add(self)

    def ask(self, draws: SampleDraws, indices: np.ndarray) -> None:
        """Ask for a batch; raises OSError if the process has ended."""
        memory = self.free.pop() if self.free else None
        self.asked.append(memory)
        left, self.left = self.left, []
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
        if len(self.lent) >= MOST_LENT:
            self.free.append(number)
            return np.array(np.frombuffer(memory, np.uint8, used)).data
        view = memoryview(memory)
        self.lent.add(number)
        # Tensors keep the view alive, as their buffer. At exit nothing needs to be taken back.
        weakref.finalize(view, self._take_back, number).atexit = False
        return view

    def _take_back(self, number: int) -> None:
        # leave_to_fork() may have removed it meanwhile.
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


# Readers of all loaders, for the hook below.
READERS: weakref.WeakSet[Reader] = weakref.WeakSet()


def _leave_to_fork() -> None:
    for reader in list(READERS):
        reader.leave_to_fork()


# Before the fork, in the parent: afterwards a process could already be writing to the memory.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_leave_to_fork)


class ReaderPool:
    """Running processes; they end when it is closed or collected, or with the interpreter."""

    def __init__(self, readers: Sequence[Reader], timeout_s: float) -> None:
        self.readers, self.timeout_s, self.pid = readers, timeout_s, os.getpid()
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
                self._wait(reader)
            return reader.receive()
        except (EOFError, OSError) as error:
            # When the interpreter ends, the connection no longer blocks, or is closed. Any other
            # OSError is one of memory that can't be mapped.
            if self.close.alive and not isinstance(error, EOFError | ConnectionResetError):
                raise
            raise self._end_of(number) from error

    def _wait(self, reader: Reader) -> None:
        # All processes are watched: the batches of one that has died would be missing later.
        sentinels = [other.process.sentinel for other in self.readers]
        ready = wait([reader.connection, *sentinels], self.timeout_s or None)
        if not ready:
            problem = f"no batch within timeout={self.timeout_s:g} seconds"
            raise RuntimeError(f"FastLoader: {problem}; 0 waits without limit")
        if reader.connection not in ready:
            ended = next(number for number, each in enumerate(sentinels) if each in ready)
            raise self._end_of(ended)

    def _end_of(self, number: int) -> BaseException:
        """The exception for a process that has ended."""
        # The interpreter ends while a thread waits for a batch.
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
    """Let the processes end after their batches, or terminate them."""
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
                # Together the processes are waited for no longer than one.
                patience = 0
                end()
                reader.process.join(INTERRUPTED_S)
    # Closed last: a thread that still waits for a batch learns of the end from its process.
    for reader in readers:
        reader.connection.close()
        reader.memories.clear()
