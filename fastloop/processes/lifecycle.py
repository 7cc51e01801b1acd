"""End of processes: orderly and once on a signal, and together with their parent."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fastloop.core.types import SignalExit

MESSAGES = {
    getattr(signal, name): message
    for name, message in [
        ("SIGINT", "interrupted"),
        ("SIGTERM", "terminated"),
        ("SIGHUP", "hung up"),
    ]
    if hasattr(signal, name)
}
"""Message of a command by the signal that ends it."""
PR_SET_PDEATHSIG = 1
"""Linux's prctl option, man 2 PR_SET_PDEATHSIG."""


def handle_signals() -> None:
    """From now on print a message and raise SignalExit on each signal that is not ignored yet."""
    for number in MESSAGES:
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _exit_with_message)


def handle_signals_silently() -> None:
    """From now on raise SignalExit without a message, on ignored signals too.

    For a process that keeps no results.
    """
    for number in MESSAGES:
        signal.signal(number, _exit)


def restore_default_signals() -> None:
    """From now on let signals end the process immediately and silently.

    For the end of a command, when all results are written: a SystemExit raised while Python shuts
    down would only print a traceback.
    """
    for number in MESSAGES:
        if signal.getsignal(number) is _exit_with_message:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def signal_handling() -> Iterator[None]:
    """Handle signals inside the context only, in a process that belongs to another program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in MESSAGES}
    handle_signals()
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
    handlers = {number: signal.getsignal(number) for number in MESSAGES}
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
        for number in arrived:
            signal.raise_signal(number)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent ends, or kill it if that is past.

    Otherwise a kill -9 of the command would leave its processes running at full speed. Only Linux
    has PR_SET_PDEATHSIG. It is not inherited, so each process has to call this.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os.kill(os.getpid(), signal.SIGKILL)


def tie_worker_to_parent(worker: int) -> None:  # noqa: ARG001 - torch passes the worker's number
    """`worker_init_fn` of a DataLoader that ends its workers with their parent."""
    die_with_parent()


def _exit_with_message(number: int, _: FrameType | None) -> None:
    _ignore_signals()
    with contextlib.suppress(OSError):  # the terminal may be gone
        print(f"{MESSAGES[signal.Signals(number)]}: finished trials are kept", file=sys.stderr)
    raise SignalExit(128 + number)


def _exit(number: int, _: FrameType | None) -> None:
    _ignore_signals()
    raise SignalExit(128 + number)


def _ignore_signals() -> None:
    """Ignore further signals, so that a second Ctrl-C can't interrupt saving the results."""
    for number in MESSAGES:
        signal.signal(number, signal.SIG_IGN)
