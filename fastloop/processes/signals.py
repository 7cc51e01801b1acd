"""Handle signals that end a command, such as Ctrl-C, so that everything that was begun is ended.

A handler raises SignalExit, and the `finally` clauses of the callers end their work in order.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from fastloop.core.types import SignalExit
from fastloop.processes.command_endings import ENDINGS, print_ending


@dataclass(frozen=True)
class ExitOnSignal:
    """A signal handler that raises SignalExit.

    While the SignalExit passes through the callers, further signals have no effect: a second Ctrl-C
    must not interrupt the saving of results. If some code has swallowed the SignalExit, the next
    signal raises another SignalExit.
    """

    describe: Callable[[], str] | None
    """Returns the text after the signal's word of ENDINGS in the message; None: no message."""

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


def handle_signals(describe: Callable[[], str] = lambda: "") -> None:
    """From now on print a message and raise SignalExit on each signal that is not ignored yet.

    describe: called when a signal arrives; returns the text after its word of ENDINGS.
    All modules should be imported first, because an interrupted import can't be repeated.
    """
    for number in ENDINGS:
        # nohup ignores SIGHUP, which must stay ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, ExitOnSignal(describe))


def handle_signals_silently() -> None:
    """From now on raise SignalExit without a message, also on signals that were ignored.

    This is for a process that keeps no results.
    """
    for number in ENDINGS:
        signal.signal(number, ExitOnSignal(None))


def exit_if_signalled() -> None:
    """Raise SignalExit again if a signal has arrived and some code has swallowed its SignalExit."""
    if _arrived and not _is_exiting():
        raise SignalExit(128 + _arrived[0])


def restore_default_signals() -> None:
    """From now on let signals end the process immediately and silently.

    If a SignalExit is ending the command already, signals are ignored instead. This is for the end
    of a command, when all results are written: a SignalExit that is raised while Python shuts down
    would only print a traceback.
    """
    last = signal.SIG_IGN if _is_exiting() else signal.SIG_DFL
    for number in ENDINGS:
        if isinstance(signal.getsignal(number), ExitOnSignal):
            signal.signal(number, last)


@contextmanager
def signal_handling(describe: Callable[[], str]) -> Iterator[None]:
    """Handle signals as `handle_signals` does, but only inside the context.

    This is for a process that belongs to another program. In other threads than the main one the
    context has no effect.
    """
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
    """Defer the signals that arrive inside the context: they are handled at its end.

    A signal mask of this thread would not suffice. Another thread may receive the signal, and
    Python then runs the handler in the main thread anyway.
    """
    # Python lets only the main thread set signal handlers.
    is_main = threading.current_thread() is threading.main_thread()
    found = {number: signal.getsignal(number) for number in ENDINGS} if is_main else {}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    arrived: list[int] = []
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


def _is_exiting() -> bool:
    """True while a SignalExit passes through this thread's `finally` and `except` clauses."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, SignalExit):
        error = error.__context__
    return error is not None
