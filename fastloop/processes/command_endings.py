"""End a command with one line: at a signal while it starts, at a closed pipe, or if the disk is
full.

This module imports next to nothing, because a signal that arrives before the handlers are set
prints a traceback.
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
"""Signal -> the word that a command prints when the signal ends it."""


def open_standard_streams() -> None:
    """Redirect standard streams that the caller has closed to nowhere, as if they were /dev/null.

    Otherwise the next file that is opened gets the number of the closed stream, and the output of
    children is written into it.
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
    """From now on print one line and end the process on each signal that is not ignored yet.

    An exception would not do: C code that initializes a module, such as numpy's, may swallow it.
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
        # Otherwise the flush at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)


@contextmanager
def exit_on_system_error(
    describe: Callable[[], str] | None = None, status: int = 1
) -> Iterator[None]:
    """Print one line and exit with the status on an OSError, such as that of a full disk.

    The same happens if the system can't load a library, for example under a memory limit. describe:
    returns a text that follows the error's text. HYDRA_FULL_ERROR=1 shows the traceback.
    """
    try:
        yield
    except BrokenPipeError:
        # quiet_on_closed_pipe handles this error.
        raise
    except (OSError, ImportError) as error:
        # An ImportError that names no shared library is a mistake in code and keeps its traceback.
        is_of_code = isinstance(error, ImportError) and ".so" not in str(error)
        if is_of_code or os.environ.get("HYDRA_FULL_ERROR"):
            raise
        from fastloop.core.text import shorten_words

        addition = describe() if describe else ""
        print(f"{shorten_words(str(error))}{addition}", file=sys.stderr)
        sys.exit(status)


def print_ending(number: int, addition: str = "") -> None:
    """Print how the signal has ended the command; may be called in any signal handler, unlike
    print().
    """
    try:
        os.write(2, f"{ENDINGS[signal.Signals(number)]}{addition}\n".encode())
    except OSError:
        # The terminal may be gone.
        return


def _exit_at_once(number: int, _: FrameType | None) -> None:
    """Print the ending, and exit with the status of a process that the signal has ended."""
    # Only one of the processes that torchrun starts prints the line.
    if os.environ.get("RANK", "0") == "0":
        print_ending(number)
    # A shell reports this status for a process that the signal has ended. Nothing has begun yet
    # that would have to be cleaned up.
    os._exit(128 + number)
