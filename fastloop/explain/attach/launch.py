"""Runs a script in a process of its own that ends as the script would, and passes signals on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fastloop.explain.attach.children import BOOTSTRAP

PASSED_ON = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
FROM_TERMINAL = 0x80
"""si_code of a signal from the kernel, such as Ctrl-C, which the script has got too."""


def run_script(arguments: Sequence[str], folder: Path) -> int:
    """Run [-m] <script> [its arguments], with the probe recording to the folder.

    Returns the exit status, or the number of the signal that ended it, negative.
    """
    # a private function, but the one by which multiprocessing passes on -W, -X and the like
    flags = subprocess._args_from_interpreter_flags()  # pyright: ignore[reportAttributeAccessIssue]
    command = [sys.executable, *flags, BOOTSTRAP, str(folder), *arguments]
    waited = {*PASSED_ON, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]  # which Python ignores
    try:
        child = os.posix_spawn(
            sys.executable, command, os.environ, setsigmask=mask, setsigdef=defaults
        )
        return _wait(child, waited)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def end_like(status: int) -> None:
    """End this process with the status, or by the signal, with which the script has ended."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        with suppress(OSError):  # SIGKILL has no handler to replace
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _wait(child: int, waited: set[signal.Signals]) -> int:
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        number, is_for_all = _next_signal(waited)
        if number != signal.SIGCHLD and not is_for_all:
            os.kill(child, number)


def _next_signal(waited: set[signal.Signals]) -> tuple[int, bool]:
    """The next signal, and whether the script has got it as well."""
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(waited)
        return info.si_signo, info.si_code == FROM_TERMINAL
    number = signal.sigwait(waited)  # macOS does not say where it comes from
    return number, number == signal.SIGINT
