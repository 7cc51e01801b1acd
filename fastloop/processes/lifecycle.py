"""End of processes: orderly and once on a signal, and together with their parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import FrameType

from fastloop.core.types import SignalExit
from fastloop.processes.startup import ENDINGS, print_ending

COMMAND = "FASTLOOP_FORKSERVER_OF"
"""Environment variable with the id of the process that has started the forkserver."""
PR_SET_PDEATHSIG = 1
"""Option of Linux's prctl() that asks for a signal when the parent ends; see prctl(2)."""


@dataclass(frozen=True)
class ExitOnSignal:
    """A signal handler that raises SignalExit, so that everything that was begun is ended.

    While the SignalExit passes through the callers, further signals have no effect: a second Ctrl-C
    must not interrupt the saving of results. If some code has swallowed the SignalExit, the next
    signal raises another one.
    """

    describe: Callable[[], str] | None
    """Returns the text behind the signal's name in the message; None: no message."""

    def __call__(self, number: int, _: FrameType | None) -> None:
        """Raise SignalExit with the status that a shell gives to a process ended by the signal."""
        if _is_exiting():
            return
        if self.describe is not None:
            print_ending(number, self.describe())
        _arrived.append(number)
        raise SignalExit(128 + number)


_arrived: list[int] = []
"""Signals for which a SignalExit was raised."""


def handle_signals(describe: Callable[[], str] = str) -> None:
    """From now on print a message and raise SignalExit on each signal that is not ignored yet.

    describe: called on a signal for the text behind its name in the message. Modules are to be
    imported before: an import that is interrupted can't be repeated.
    """
    for number in ENDINGS:
        # nohup ignores SIGHUP, which must stay ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, ExitOnSignal(describe))


def handle_signals_silently() -> None:
    """From now on raise SignalExit without a message, on ignored signals too.

    For a process that keeps no results.
    """
    for number in ENDINGS:
        signal.signal(number, ExitOnSignal(None))


def exit_if_signalled() -> None:
    """Raise SignalExit again if the code that a signal has interrupted swallowed the first one."""
    if _arrived and not _is_exiting():
        raise SignalExit(128 + _arrived[0])


def restore_default_signals() -> None:
    """From now on let signals end the process immediately and silently, or ignore them if one has
    ended the command already.

    For the end of a command, when all results are written: a SystemExit raised while Python shuts
    down would only print a traceback.
    """
    last = signal.SIG_IGN if _is_exiting() else signal.SIG_DFL
    for number in ENDINGS:
        if isinstance(signal.getsignal(number), ExitOnSignal):
            signal.signal(number, last)


@contextmanager
def signal_handling(describe: Callable[[], str]) -> Iterator[None]:
    """Handle signals, as `handle_signals` does, inside the context only, in a process that belongs
    to another program."""
    # Python lets only the main thread set signal handlers, and runs them there.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in ENDINGS}
    handle_signals(describe)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Handle signals that arrive inside the context at its end.

    A signal mask would not do: another thread may receive the signal, and Python then runs the
    handler in the main thread all the same.
    """
    handlers = {number: signal.getsignal(number) for number in ENDINGS}
    if threading.current_thread() is not threading.main_thread():
        handlers = {}
    arrived: list[int] = []
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        # The program's own handlers are back: each signal is raised again for them.
        for number in arrived:
            signal.raise_signal(number)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends.

    If the parent has ended already, this process is killed. Without this a kill -9 of the command
    would leave its processes running at full speed. Only Linux has PR_SET_PDEATHSIG. It is not
    inherited, so each process has to call this.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
        parent = multiprocessing.parent_process()
        # The parent may have ended before prctl(): then no signal will come.
        if parent is not None and not parent.is_alive():
            os.kill(os.getpid(), signal.SIGKILL)


def tie_worker_to_parent(worker: int) -> None:  # noqa: ARG001 - torch passes the worker's number
    """`worker_init_fn` of a DataLoader that ends its workers with their parent."""
    die_with_parent()
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():
        # A forkserver has forked this worker, and lives as long as any of its processes does: the
        # kernel would not tell that the process which asked for the worker has been killed.
        threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    """Kill this process once the sentinel tells that another one has ended."""
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)


def _is_exiting() -> bool:
    """True while a SignalExit passes through this thread's `finally` and `except` clauses."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, SignalExit):
        error = error.__context__
    return error is not None
