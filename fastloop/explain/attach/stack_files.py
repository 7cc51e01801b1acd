"""Stacks of a script's processes, which faulthandler writes on a signal, even in a process that
hangs and so runs no Python code."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

STACKS_FILE, USER_STACKS_FILE = "stacks", "asked"
"""Names of the files for stacks that this command asks for, and for those at SIGUSR1."""
# A real-time signal, which a script hardly uses. macOS has none; its SIGINFO ends no process.
STACK_SIGNAL = (
    signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else getattr(signal, "SIGINFO", None)
)
ATTEMPTS, PAUSE_S = 20, 0.05
"""Number of times to wait for a process to write its stack, and the time of each wait."""


def write_stacks_on_signals(folder: str) -> None:
    """Let this process and its forks write their stacks to the folder on STACK_SIGNAL and SIGUSR1.

    A handler that the script sets for SIGUSR1 takes the place of this one.
    """
    # A full disk must not end the script.
    with suppress(OSError):
        if STACK_SIGNAL:
            faulthandler.register(STACK_SIGNAL, _open(Path(folder) / STACKS_FILE))
        faulthandler.register(signal.SIGUSR1, _open(Path(folder) / USER_STACKS_FILE))


def _open(path: Path) -> int:
    """A descriptor that stays open to the end of the process.

    A file object that is never closed would cause a ResourceWarning in scripts that show all
    warnings.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def read_stack(folder: Path, pid: int, pause: Callable[[float], object]) -> str:
    """The stacks of the process's threads, the main one's last; empty if it writes none.

    pause: waits for this many seconds.
    """
    import psutil

    path = folder / STACKS_FILE
    try:
        # The signal would end a process without the handler, such as a program that a worker has
        # started. A process with the handler has the file open.
        if not any(Path(file.path) == path.resolve() for file in psutil.Process(pid).open_files()):
            return ""
        start = path.stat().st_size
        psutil.Process(pid).send_signal(STACK_SIGNAL or 0)
    except (OSError, psutil.Error):
        return ""
    stack = ""
    for _ in range(ATTEMPTS):
        pause(PAUSE_S)
        text = path.read_bytes()[start:].decode(errors="replace")
        # faulthandler writes in pieces. The stack is complete if nothing was added since last time.
        if stack and text == stack:
            break
        stack = text
    return stack
