"""The work of a process that reads a Dataset: it makes the batches that its parent asks for, in
memory that both share."""

from __future__ import annotations

import os
import pickle
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import default_collate
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from fastloop.core.seeds import mix_seed
from fastloop.fastloader.anonymous_file import send_file
from fastloop.fastloader.dataset_source import DatasetSource
from fastloop.fastloader.failed_batch import describe_samples
from fastloop.fastloader.global_draws import GlobalDraws
from fastloop.fastloader.sample_draws import COLLATE, SampleDraws
from fastloop.fastloader.shared_batch import BatchWriter, is_plain
from fastloop.fastloader.thread_access import UserCode, share

PARENT_S = 5.0
"""A process without work checks after this time whether its parent is still alive."""
SENDING_S = 0.01
"""A process that sends an error looks for tasks again after this time."""
MOST_TEXT = 30_000
"""Maximum number of characters of a traceback that are sent: the last ones."""


class Task(NamedTuple):
    """A batch to make."""

    draws: SampleDraws
    indices: np.ndarray
    memory: int | None
    """Number of the process's memory to use again, if any."""
    left: list[int]
    """Numbers of memories to forget."""


class Reply(NamedTuple):
    """A batch that was made. If it lies in new memory, the memory's file follows."""

    memory: int
    is_new: bool
    begin: int
    """Offset of the batch's description in the memory."""
    nbytes: int
    """Bytes of the description."""


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """The number of a process, and the Dataset that it reads."""

    number: int
    """Its number among the processes, from 0 on."""
    num_readers: int
    seed: int
    """The seed of its generators, as in `torch.utils.data.get_worker_info`."""
    worker_init_fn: Callable[[int], None] | None
    code: UserCode
    """The Dataset and its collate_fn."""
    is_unbatched: bool
    """True: each sample is delivered by itself, instead of batches."""
    reads_lists: bool
    """True: the dataset itself makes a batch of a list of indices."""


@dataclass
class _Reader:
    """The Dataset in this process, and the memory for its batches."""

    source: DatasetSource
    where: str
    """The name of this process in the texts of errors."""
    writer: BatchWriter = field(default_factory=BatchWriter)
    failure: ExceptionWrapper | None = None
    """The error of worker_init_fn, which each task gets as its reply."""
    draws: GlobalDraws = field(default_factory=GlobalDraws)
    making: tuple[int, Sequence[int]] = (COLLATE, ())
    """The kind of user code that runs, and its samples' indices: for the text of an error, and for
    `_collate_into`, which reads the kind."""

    def make(self, task: Task) -> Reply | ExceptionWrapper:
        """The batch of a task, or the error that it ended in."""
        if self.failure is not None:
            return self.failure
        self.making = COLLATE, task.indices.tolist()
        self.writer.open(task.memory, task.left)
        try:
            batch = self._read(task)
            begin, nbytes = self.writer.write(batch)
        except Exception:
            self.writer.discard()
            return _wrap(f"{self.where}, at {_describe(*self.making)}")
        assert self.writer.number is not None
        return Reply(self.writer.number, self.writer.new_file is not None, begin, nbytes)

    def _read(self, task: Task) -> Any:
        read = partial(replace(self.source, begin=self._note(task.draws)).batch, task.indices)
        if self.draws.shared is not None:
            return self.draws.make_seeded(read)
        # The first batch shows which generators the samples draw from.
        with self.draws.find(for_threads=False):
            return read()

    def _note(self, draws: SampleDraws) -> Callable[[int, Sequence[int]], None]:
        def begin(kind: int, indices: Sequence[int]) -> None:
            self.making = kind, indices
            draws.begin(kind, indices)

        return begin


def run_reader(
    connection: Connection, settings: ReaderSettings, others: Sequence[Connection]
) -> None:
    """Make batches until the parent has no more tasks, or is gone.

    others: ends of the parent's connections that a fork has copies of. While one is open, another
    process would not notice that the parent is gone.
    """
    # Ctrl-C reaches the whole process group: the parent gets it too, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A fork inherits the program's signal handlers. That of SIGTERM may write a checkpoint, and
    # would keep the process alive.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    # torch gets one thread, as in DataLoader's workers, because several processes use the cores.
    torch.set_num_threads(1)
    reader = _start(settings)
    tasks = _Tasks(connection)
    try:
        for task in tasks:
            _send(tasks, reader.make(task), reader.writer)
    except (BrokenPipeError, ConnectionResetError):
        # The parent has closed its end: it does not wait for this batch.
        return


def _start(settings: ReaderSettings) -> _Reader:
    """The reader of this process, as DataLoader begins a worker: seeded, numbered, initialized."""
    source = DatasetSource(
        settings.code,
        settings.is_unbatched,
        share(settings.code),
        is_thread_safe=True,
        reads_lists=settings.reads_lists,
    )
    reader = _Reader(source, f"in FastLoader worker process {settings.number}")
    # A user's collate_fn may call default_collate for tensors that it does not return: these go to
    # neither the batch's memory nor /dev/shm.
    _collate_into(reader, is_batch=settings.code.collate_fn is default_collate)
    _seed(settings.seed)
    # get_worker_info() tells a Dataset its number, as under DataLoader.
    torch_worker._worker_info = torch_worker.WorkerInfo(
        id=settings.number,
        num_workers=settings.num_readers,
        seed=settings.seed,
        dataset=settings.code.dataset,
    )
    try:
        if settings.worker_init_fn is not None:
            settings.worker_init_fn(settings.number)
    except Exception:
        reader.failure = _wrap(f"{reader.where}, in worker_init_fn")
    return reader


def _seed(seed: int) -> None:
    """Seed the draws of worker_init_fn; samples have their own seeds."""
    random.seed(seed)
    np.random.seed(mix_seed(seed) % 2**32)
    torch.manual_seed(seed)


def _collate_into(reader: _Reader, *, is_batch: bool) -> None:
    """Make default_collate stack tensors in the batch's memory.

    is_batch=False: in this process's own memory, because the collate_fn is the user's.

    torch's own function for a worker process would take new memory from /dev/shm for each tensor.
    default_collate looks functions up in a map of the whole process, which belongs to this loader
    alone.
    """
    # A function that the program has put there, as torch's documentation proposes, is kept.
    if default_collate_fn_map.get(torch.Tensor) is not collate_tensor_fn:
        return
    writer = reader.writer

    def stack(batch: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        out = None
        if first.is_nested or first.layout is not torch.strided:
            # torch's own function refuses such tensors, with its own message.
            return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
        kind = first.dtype, first.shape
        # A Dataset may call default_collate for a sample, and keep the result: the batch's memory
        # is used again for later batches.
        is_of_batch = is_batch and reader.making[0] == COLLATE
        if is_of_batch and all(
            is_plain(each) and (each.dtype, each.shape) == kind for each in batch
        ):
            # torch.stack refuses or converts tensors of different dtypes or shapes. Only tensors
            # that it stacks unchanged fit into memory of this shape.
            out = writer.take((len(batch), *first.shape), first.dtype)
        return torch.stack(list(batch), 0, out=out)

    default_collate_fn_map[torch.Tensor] = stack


class _Tasks:
    """An iterable of the parent's tasks, until a None has arrived or the parent is gone."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._parent = os.getppid()
        self._pending: deque[Task] = deque()
        self._has_ended = False

    def __iter__(self) -> Iterator[Task]:
        while True:
            # All tasks that have arrived are read before one is done: the parent never waits to
            # send, and a None ends this process without making the batches before it.
            while not self._has_ended and (not self._pending or self.connection.poll()):
                self._read(PARENT_S)
            if self._has_ended:
                return
            yield self._pending.popleft()

    def _read(self, wait_s: float) -> None:
        """Read a task, if one arrives within the time."""
        if not self.connection.poll(wait_s):
            # The connection does not tell when the parent dies if some other process holds its
            # other end.
            self._has_ended = os.getppid() != self._parent
            return
        try:
            task = self.connection.recv()
        except (EOFError, ConnectionResetError):
            task = None
        if task is None:
            self._has_ended = True
        else:
            self._pending.append(task)

    def send_error(self, error: ExceptionWrapper) -> None:
        """Send a reply that may be long.

        Several of them fill the connection if the parent draws many batches before it receives the
        first. Tasks are read meanwhile: the parent might be waiting to send one.
        """
        thread = threading.Thread(target=self._send, args=(error,), daemon=True)
        thread.start()
        thread.join(SENDING_S)
        while thread.is_alive() and not self._has_ended:
            self._read(SENDING_S)

    def _send(self, error: ExceptionWrapper) -> None:
        # Without a parent there are no more tasks, which the other thread notices.
        with suppress(BrokenPipeError, ConnectionResetError):
            self.connection.send(error)


def _send(tasks: _Tasks, reply: Reply | ExceptionWrapper, writer: BatchWriter) -> None:
    connection = tasks.connection
    if isinstance(reply, ExceptionWrapper):
        tasks.send_error(reply)
    else:
        connection.send(reply)
    if writer.new_file is not None:
        # A sample may fail after new memory was created. The parent expects no file then.
        if isinstance(reply, Reply):
            send_file(connection, writer.new_file)
        os.close(writer.new_file)
        writer.new_file = None


def _wrap(where: str) -> ExceptionWrapper:
    """The exception that is being handled, with its traceback as text."""
    failure = ExceptionWrapper(where=where)
    failure.exc_msg = failure.exc_msg[-MOST_TEXT:]
    try:
        pickle.dumps(failure)
    except Exception:
        # The parent could not find the error's class by its name.
        failure.exc_type = RuntimeError
    return failure


def _describe(kind: int, indices: Sequence[int]) -> str:
    named = describe_samples(indices)
    return f"the batch of {named}" if kind == COLLATE and len(indices) > 1 else named
