"""End a command without a traceback: on an early signal, a closed pipe, or an error of the system.

This module imports next to nothing, so that the handlers of signals are set soon. A signal that
arrives before that prints a traceback.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDINGS = {
    getattr(signal, name): ending
    for name, ending in [
        ("SIGINT", "interrupted"),
        ("SIGTERM", "terminated"),
        ("SIGHUP", "hung up"),
    ]
    if hasattr(signal, name)
}
"""Signal -> the word that a command prints if the signal ends the command."""


def open_standard_streams() -> None:
    """Open /dev/null in place of each standard stream that the caller has closed.

    Otherwise the next file that is opened gets the number of the closed stream, and the output of
    child processes is written into that file.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # A new descriptor gets the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - as Python's own


def exit_at_once_on_signals() -> None:
    """Make each signal of ENDINGS print one line and end the process, from now on.

    Signals that are ignored stay ignored. The handler raises no exception, because C code that
    initializes a module, such as numpy's, may swallow an exception.
    """
    for number in ENDINGS:
        # nohup ignores SIGHUP, which must stay ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit_at_once)


@contextmanager
def quiet_on_closed_pipe() -> Iterator[None]:
    """Exit silently with status 1 if the reader of stdout, such as head, has stopped reading."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout at exit. Without /dev/null, that flush would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)


@contextmanager
def exit_on_system_error(
    describe: Callable[[], str] | None = None, status: int = 1
) -> Iterator[None]:
    """Print one line and exit with `status` on an OSError, such as that of a full disk.

    The same happens if the system can't load a library, for example under a memory limit. describe:
    returns a text to print after the error's text; None: no text. If HYDRA_FULL_ERROR is set, the
    error is raised.
    """
    try:
        yield
    except BrokenPipeError:
        # quiet_on_closed_pipe handles this error.
        raise
    except (OSError, ImportError) as error:
        # An ImportError that names no shared library is a mistake in code, and is raised again.
        is_of_code = isinstance(error, ImportError) and ".so" not in str(error)
        if is_of_code or os.environ.get("HYDRA_FULL_ERROR"):
            raise
        from fastloop.core.text import shorten_words

        addition = describe() if describe else ""
        print(f"{shorten_words(str(error))}{addition}", file=sys.stderr)
        sys.exit(status)


def print_ending(number: int, addition: str = "") -> None:
    """Print the word of ENDINGS for a signal, to stderr.

    number: number of the signal. addition: text after the word. Unlike print(), this function may
    be called in any signal handler.
    """
    try:
        os.write(2, f"{ENDINGS[signal.Signals(number)]}{addition}\n".encode())
    except OSError:
        # The terminal may be gone.
        return


def _exit_at_once(number: int, _: FrameType | None) -> None:
    """Print the ending, and exit with the status of a process that the signal has ended."""
    # torchrun starts several processes, of which only rank 0 prints the line.
    if os.environ.get("RANK", "0") == "0":
        print_ending(number)
    # A shell reports this status if a signal has ended a process. The process ends at once, because
    # it has not begun anything yet that would have to be cleaned up.
    os._exit(128 + number)
