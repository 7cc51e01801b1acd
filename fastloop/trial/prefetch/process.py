"""Load the next batches in a single background process: `device_prefetch_by=process`.

The parent sends an epoch's number, then one MORE for each batch that may be loaded, and finally
STOP. The process answers with batches in shared memory, and one EpochEnd.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from typing import Any

import optree
import torch

from fastloop.core.exit_status import describe_exit
from fastloop.core.fork_garbage import leave_garbage_to_parent
from fastloop.core.open_iterators import close_on_exit
from fastloop.core.types import Epochs, Tree
from fastloop.processes.parent_death import die_with_parent
from fastloop.trial.prefetch.stream import DeliveryStream

MORE, STOP, EXIT = "more", "stop", "exit"
"""Commands to the process, besides the number of an epoch: load one more batch; end this epoch;
exit."""
EXIT_TIMEOUT_S = 5.0
"""Seconds that the process gets to exit. It may still be loading: after this time it is killed."""
ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes, a cache line, as torch's own memory
does."""


@dataclass(frozen=True)
class EpochEnd:
    """End of an epoch: no batch is left, or loading failed with `error`."""

    error: Exception | None = None
    """The error of loading; None if no batch is left."""
    details: str = ""
    """The error's traceback in the process."""


@contextmanager
def prefetch_by_process(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
    start_method: str,
) -> Iterator[Epochs]:
    """Epochs of batches on the device; `ahead` batches are loaded while a step runs.

    The process starts with the first epoch, opens the loader, and lives until the context ends. A
    batch comes in shared memory and is moved to the device when the loop asks for it, on CUDA
    concurrently with the previous step. Raises ChildProcessError if the process has ended.
    """
    stream = DeliveryStream(device)
    process = LoaderProcess(open_, ahead, start_method)

    def deliver_epoch(epoch: int) -> Generator[Tree, None, None]:
        with contextlib.closing(process.batches(epoch)) as host_batches:
            batches = stream.start_epoch(lambda _: host_batches, epoch)
            for pending in stream.deliver_each(batches, deliver):
                yield stream.receive(*pending)

    try:
        with close_on_exit(deliver_epoch) as epochs:
            yield epochs
    finally:
        process.stop()


class LoaderProcess:
    """The parent's handle of the process that loads.

    It starts the process, sends commands to it, and receives its batches.
    """

    def __init__(
        self,
        open_: Callable[[], AbstractContextManager[Epochs]],
        ahead: int,
        start_method: str,
    ) -> None:
        self._open = open_
        self._ahead = ahead
        self._context: Any = multiprocessing.get_context(start_method)
        self._process: BaseProcess | None = None
        self._is_loading = False

    def batches(self, epoch: int) -> Generator[Tree, None, None]:
        """Yield the host batches of an epoch; raises the errors of loading in the process."""
        if self._is_loading:
            raise RuntimeError("one process loads one epoch at a time")
        if self._process is None:
            self._start()
        ended = False
        self._is_loading = True
        try:
            for command in (epoch, *[MORE] * self._ahead):
                self._send(command)
            while True:
                message = self._receive()
                if isinstance(message, EpochEnd):
                    ended = True
                    _raise_error(message)
                    return
                # This is sent before the yield, so that the process loads another batch while the
                # loop's step runs.
                self._send(MORE)
                yield message.unpack()
        finally:
            # The loop may have left the epoch early. Batches that are still in the pipe are read
            # here, so that the next epoch finds it empty. Sending fails if the process has ended.
            with contextlib.suppress(OSError):
                self._send(STOP)
                while not ended:
                    ended = isinstance(self._receive(), EpochEnd)
            self._is_loading = False

    def stop(self) -> None:
        """Tell the process to close its loader and exit; kill it after EXIT_TIMEOUT_S."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            self._commands.send(EXIT)
        self._commands.close()
        process.join(EXIT_TIMEOUT_S)
        process.kill()
        process.join()
        process.close()
        self._messages.close()

    def _start(self) -> None:
        """Start the process with a pipe in each direction."""
        commands, self._commands = Pipe(duplex=False)
        self._messages, messages = Pipe(duplex=False)
        parent_ends = self._commands, self._messages
        args = self._open, commands, messages, parent_ends
        # The process is not a daemon, because a daemonic process can't start the loader's workers.
        process = self._context.Process(target=_serve, args=args, daemon=False)
        with leave_garbage_to_parent():
            process.start()
        self._process = process
        commands.close()
        messages.close()

    def _send(self, command: int | str) -> None:
        """Send a command; raises ChildProcessError if the process has ended."""
        try:
            self._commands.send(command)
        except OSError as error:
            raise self._exit_error() from error

    def _receive(self) -> SharedBatch | EpochEnd:
        """Receive a batch or the end of an epoch; raises ChildProcessError if the process has
        ended."""
        try:
            return self._messages.recv()
        except (EOFError, OSError) as error:
            raise self._exit_error() from error

    def _exit_error(self) -> ChildProcessError:
        """The error for a process that has ended, with its exit status."""
        assert self._process is not None
        self._process.join()
        cause = describe_exit(self._process.exitcode)
        return ChildProcessError(f"the prefetching process has ended: {cause}")


def _raise_error(end: EpochEnd) -> None:
    if end.error is not None:
        end.error.add_note(f"\nin the prefetching process:\n{end.details}")
        raise end.error


def _serve(
    open_: Callable[[], AbstractContextManager[Epochs]],
    commands: Connection,
    messages: Connection,
    parent_ends: tuple[Connection, ...],
) -> None:
    """Run the process: load epochs as commanded, until EXIT. Ctrl-C is left to the parent."""
    # A forked process inherits the parent's ends of the pipes. If it kept them open, it would never
    # notice the end of the parent.
    for connection in parent_ends:
        connection.close()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # torch gets one thread, as in DataLoader's workers: threads of a pool do not survive a fork.
    torch.set_num_threads(1)
    try:
        with open_() as epochs:
            while isinstance(epoch := _receive_command(commands), int):
                _load_epoch(epochs(epoch), commands, messages)
    except Exception as error:
        # The pipe is broken if the parent has ended.
        with contextlib.suppress(BrokenPipeError):
            messages.send(EpochEnd(_picklable(error), traceback.format_exc()))
        # Stay alive: the parent still fetches the shared memory of batches sent before.
        _wait_for_stop(commands)


def _load_epoch(batches: Iterable[Tree], commands: Connection, messages: Connection) -> None:
    """Send one batch of an epoch per MORE, until the epoch's end or STOP."""
    num_allowed = 0
    iterator = iter(batches)
    while True:
        # If no batch is allowed, this waits for a command. Otherwise it only receives the commands
        # that have arrived, so that STOP is noticed before the next batch is loaded.
        while not num_allowed or commands.poll():
            if _receive_command(commands) == STOP:
                messages.send(EpochEnd())
                return
            num_allowed += 1
        num_allowed -= 1
        try:
            batch = next(iterator)
        except StopIteration:
            break
        messages.send(share_batch(batch))
        del batch
    messages.send(EpochEnd())
    _wait_for_stop(commands)


def _wait_for_stop(commands: Connection) -> None:
    while _receive_command(commands) != STOP:
        pass


def _receive_command(commands: Connection) -> int | str:
    """Receive a command; exits if the parent has ended."""
    try:
        return commands.recv()
    # The parent has ended.
    except EOFError:
        raise SystemExit from None


def _picklable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with its text if it can't be pickled."""
    try:
        return pickle.loads(pickle.dumps(error))
    # An exception's class may have a constructor that unpickling can't call.
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class TensorLocation:
    """Position, dtype and shape of a tensor in a block of shared memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """Position in the block, in bytes."""

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """The tensor as a view of the memory."""
        nbytes = math.prod(self.shape) * self.dtype.itemsize
        return memory[self.offset : self.offset + nbytes].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class SharedBatch:
    """A batch that is sent between processes, with its plain CPU tensors in one block of memory.

    So a batch needs one file descriptor. torch would send a file descriptor for each tensor, and
    keep it open as long as the tensor lives. The sender writes the memory once; then it belongs
    only to the receiver.
    """

    memory: torch.Tensor
    """The block of shared memory."""
    structure: Any
    """The containers of the batch, without its leaves."""
    leaves: list[Any]
    """A TensorLocation for each packed tensor; any other leaf as it is."""

    def unpack(self) -> Tree:
        """The batch, with tensors that are views of the shared memory."""
        leaves = [
            leaf.view(self.memory) if isinstance(leaf, TensorLocation) else leaf
            for leaf in self.leaves
        ]
        return optree.tree_unflatten(self.structure, leaves)


def share_batch(batch: Tree) -> SharedBatch:
    """Copy the batch into new shared memory; leaves other than plain CPU tensors stay as they are,
    and are pickled separately."""
    leaves, structure = optree.tree_flatten(batch)
    packed = list(leaves)
    end = 0
    for index, leaf in enumerate(leaves):
        if _is_plain(leaf):
            packed[index] = TensorLocation(leaf.dtype, tuple(leaf.shape), end)
            end += -(-leaf.nbytes // ALIGNMENT) * ALIGNMENT
    memory = _allocate_shared(end)
    for leaf, location in zip(leaves, packed, strict=True):
        if isinstance(location, TensorLocation):
            location.view(memory).copy_(leaf)
    return SharedBatch(memory, structure, packed)


def _is_plain(leaf: Any) -> bool:
    """True for a dense CPU tensor of the class Tensor itself, which can be copied to the block."""
    if type(leaf) is not torch.Tensor or leaf.device.type != "cpu":
        return False
    return leaf.layout is torch.strided and not (leaf.is_nested or leaf.is_quantized)


def _allocate_shared(nbytes: int) -> torch.Tensor:
    # share_memory_() of a new tensor would copy its memory, which has no content yet.
    storage = torch.UntypedStorage._new_shared(nbytes) if nbytes else torch.UntypedStorage(0)
    return torch.empty(0, dtype=torch.uint8).set_(storage)
