"""`device_prefetch_by=process`: one process loads the next batches, seed 002's second way."""

from __future__ import annotations

import contextlib
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

import torch

from fastloop.ahead.lane import Lane
from fastloop.ahead.packed import Packed, packed
from fastloop.generators import closed_at_the_end
from fastloop.lifeline import tie
from fastloop.types import Epochs, Tree

MORE, STOP, LEAVE = "more", "stop", "leave"
"""What the process is told besides the number of an epoch: room for one more batch, no more of
this epoch, no more at all."""
PATIENCE_S = 5.0
"""For a process that was told to leave and is in the middle of loading; then it is killed."""


@dataclass(frozen=True)
class Ended:
    """No batch of this epoch is left; or what went wrong, and where."""

    error: Exception | None = None
    details: str = ""


@contextmanager
def by_process(
    open_: Callable[[], AbstractContextManager[Epochs]],
    deliver: Callable[[Tree], Tree],
    ahead: int,
    device: torch.device,
    start_method: str,
) -> Iterator[Epochs]:
    """Epochs of batches on the device, of which `ahead` are loaded while a step runs.

    The process starts with the first epoch, opens the loader, and is kept until this context is
    left. A batch comes through shared memory and is moved when the loop asks for it; on CUDA beside
    the step that is still running. Raises ChildProcessError where the process is gone.
    """
    lane, loading = Lane(device), LoaderProcess(open_, ahead, start_method)

    def moved(epoch: int) -> Generator[Tree, None, None]:
        with contextlib.closing(loading.batches(epoch)) as batches:
            for sent in lane.sent(lane.begun(lambda _: batches, epoch), deliver):
                yield lane.received(*sent)

    try:
        with closed_at_the_end(moved) as epochs:
            yield epochs
    finally:
        loading.end()


class LoaderProcess:
    """The process that loads, from the outside."""

    def __init__(
        self,
        open_: Callable[[], AbstractContextManager[Epochs]],
        ahead: int,
        start_method: str,
    ) -> None:
        self._open, self._ahead = open_, ahead
        self._context: Any = multiprocessing.get_context(start_method)
        self._process: BaseProcess | None = None
        self._is_loading = False

    def batches(self, epoch: int) -> Generator[Tree, None, None]:
        """The host batches of an epoch; raises what was raised in the process."""
        if self._is_loading:
            raise RuntimeError("one process loads one epoch at a time")
        if self._process is None:
            self._start()
        ended, self._is_loading = False, True
        try:
            for told in (epoch, *[MORE] * self._ahead):
                self._tell(told)
            while True:
                found = self._received()
                if isinstance(found, Ended):
                    ended = True
                    _raise(found)
                    return
                self._tell(MORE)
                yield found.unpacked()
        finally:
            with contextlib.suppress(OSError):  # it has ended by itself
                self._tell(STOP)
                while not ended:
                    ended = isinstance(self._received(), Ended)
            self._is_loading = False

    def end(self) -> None:
        """Let it leave what it has opened, and wait for that."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            self._commands.send(LEAVE)
        self._commands.close()
        process.join(PATIENCE_S)
        process.kill()
        process.join()
        process.close()
        self._loaded.close()

    def _start(self) -> None:
        told, self._commands = Pipe(duplex=False)
        self._loaded, loaded = Pipe(duplex=False)
        ours = self._commands, self._loaded
        work = self._open, told, loaded, ours
        # No daemon: the loader may have workers.
        process = self._context.Process(target=_serve, args=work, daemon=False)
        process.start()
        self._process = process
        told.close()
        loaded.close()

    def _tell(self, what: int | str) -> None:
        try:
            self._commands.send(what)
        except OSError as error:
            raise self._gone() from error

    def _received(self) -> Packed | Ended:
        try:
            return self._loaded.recv()
        except (EOFError, OSError) as error:
            raise self._gone() from error

    def _gone(self) -> ChildProcessError:
        assert self._process is not None
        self._process.join()
        code = self._process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return ChildProcessError(f"the process that loads ahead has ended, {how}")


def _raise(ended: Ended) -> None:
    if ended.error is not None:
        ended.error.add_note(f"\nin the process that loads ahead:\n{ended.details}")
        raise ended.error


def _serve(
    open_: Callable[[], AbstractContextManager[Epochs]],
    commands: Connection,
    loaded: Connection,
    parents: tuple[Connection, ...],
) -> None:
    """Load the epochs that are asked for; the terminal's Ctrl-C is the parent's to handle."""
    for end in parents:  # a fork has them, and would keep them open
        end.close()
    tie()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)  # as in DataLoader's workers: a fork has none of the others
    try:
        with open_() as epochs:
            while isinstance(epoch := _told(commands), int):  # or LEAVE
                _load(epochs(epoch), commands, loaded)
    except Exception as error:
        with contextlib.suppress(BrokenPipeError):  # nobody is there any more
            loaded.send(Ended(_portable(error), traceback.format_exc()))
        # It hands over the memory of the batches that are still on their way.
        while _told(commands) != STOP:
            pass


def _load(batches: Iterable[Tree], commands: Connection, loaded: Connection) -> None:
    """One epoch, each batch when there is room for it, until its end or STOP."""
    room, iterator = 0, iter(batches)
    while True:
        while not room or commands.poll():
            if _told(commands) == STOP:
                loaded.send(Ended())
                return
            room += 1
        room -= 1
        try:
            batch = next(iterator)
        except StopIteration:
            break
        loaded.send(packed(batch))
        del batch
    loaded.send(Ended())
    while _told(commands) != STOP:
        pass


def _told(commands: Connection) -> int | str:
    try:
        return commands.recv()
    except EOFError:  # nobody is there any more
        raise SystemExit from None


def _portable(error: Exception) -> Exception:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:  # it may need anything
        return RuntimeError(f"{type(error).__name__}: {error}")
