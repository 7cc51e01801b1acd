"""ReaderHandle, the loader's handle of a process that reads samples of a Dataset.

Through the handle, the loader asks the process for batches, and reads the batches from memory that
both share. The code that the process runs is in reader_process.py.
"""

from __future__ import annotations

import mmap
import os
import pickle
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from torch._utils import ExceptionWrapper

from fastloop.core.fork_garbage import leave_garbage_to_parent
from fastloop.fastloader.anonymous_file import receive_memory
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import FailedBatch, try_batch
from fastloop.fastloader.reader_process import ReaderSettings, Task, run_reader
from fastloop.fastloader.sample_draws import SampleDraws
from fastloop.fastloader.shared_batch import read_batch

MOST_LENT = 8
"""Maximum number of a process's batches that stay in shared memory while the program keeps them.
Further ones are copied, so that a program that keeps all batches runs out of neither files nor
shared memory."""


@dataclass(eq=False)
class ReaderHandle:
    """The loader's side of a process that reads samples: its connection, and its batches' memory.

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
        """Add this handle to HANDLES."""
        HANDLES.add(self)

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


HANDLES: weakref.WeakSet[ReaderHandle] = weakref.WeakSet()
"""The handles of all loaders. Before this process forks, `leave_to_fork` of each is called."""


def _leave_to_fork() -> None:
    for handle in list(HANDLES):
        handle.leave_to_fork()


# This runs in the parent before the fork. After it, a process could already be writing a new batch
# to memory that the fork has, too.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_leave_to_fork)


def start_reader(context: Any, settings: ReaderSettings, others: list[Connection]) -> ReaderHandle:
    """Start a process that reads samples, and return its handle.

    context: the context of multiprocessing that starts the process. others: connections of this
    process to the processes that were started before; a forked process closes its copies of these
    connections. Raises ValueError if the process can't start.
    """
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
        raise ValueError(_describe_refusal(context, settings, error)) from error
    # From here on only the child holds the other end of the pipe: if it dies, recv() raises
    # EOFError here.
    there.close()
    return ReaderHandle(process, here)


def _describe_refusal(context: Any, settings: ReaderSettings, error: Exception) -> str:
    """The message for a process that can't start, because pickle refuses one of its arguments.

    The message names the Dataset's class, the start method, and pickle's error.
    """
    name = type(settings.code.dataset).__name__
    method = context.get_start_method()
    problem = f"processes get {name}, collate_fn and worker_init_fn pickled by {method!r}"
    return f"{problem}, and that fails ({type(error).__name__}: {error})"
