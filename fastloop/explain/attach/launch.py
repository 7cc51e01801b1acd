"""Run a script in a process of its own, pass signals on to it, and end as the script does.

The processes of the script record to a temporary folder, which is made here; folders that earlier
commands and scripts have left behind are removed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

import psutil

from fastloop.explain.attach.follow_children import BOOTSTRAP
from fastloop.explain.attach.library_files import add_own_files
from fastloop.processes.command_endings import ENDINGS

PASSED_ON = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
]
"""Signals to this command that are passed on to the script."""
KILLED_S = 5.0
"""Time that a script has to end after SIGTERM."""
FROM_TERMINAL = 0x80
"""si_code SI_KERNEL: a signal from the terminal, such as Ctrl-C, which the script has received,
too."""
PREFIX = "fastloop-attach-"
NAME = re.compile(rf"{PREFIX}(\d+)-\w+")
"""Name of a folder, with the id of the process that has made it."""


def run_script(
    arguments: Sequence[str],
    folder: Path,
    note_signal: Callable[[], object] = lambda: None,
    limit_s: float | None = None,
    note_end: Callable[[int], object] = lambda _: None,
) -> int:
    """Run [-m] <script> [its arguments], with the probe recording to the folder.

    note_signal: called when SIGUSR1 was passed on to the script. limit_s: time after which the
    script is ended by SIGTERM, and KILLED_S later by SIGKILL. note_end: called with the number of a
    signal, such as Ctrl-C, by which a command ends.
    Returns the exit status; negative: the number of the signal that ended the script.
    """
    # A patch of the script's files is made in this process.
    add_own_files(arguments)
    # This private function is the one by which multiprocessing passes on -W, -X and the like.
    flags = subprocess._args_from_interpreter_flags()  # pyright: ignore[reportAttributeAccessIssue]
    command = [sys.executable, *flags, BOOTSTRAP, str(folder), *arguments]
    # Blocked before the start, so that no signal is lost between the start and the wait.
    waited = {*PASSED_ON, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    # Python ignores these two, and a child would inherit that.
    defaults = [signal.SIGPIPE, signal.SIGXFSZ]
    try:
        child = os.posix_spawn(
            sys.executable, command, os.environ, setsigmask=mask, setsigdef=defaults
        )
        with _time_limit(child, limit_s):
            return _wait(child, waited, note_signal, note_end)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _time_limit(child: int, limit_s: float | None) -> Iterator[None]:
    """Send the child SIGTERM after limit_s, and SIGKILL after KILLED_S more."""
    if limit_s is None:
        yield
        return
    timers = [
        Timer(limit_s, os.kill, (child, signal.SIGTERM)),
        Timer(limit_s + KILLED_S, os.kill, (child, signal.SIGKILL)),
    ]
    for timer in timers:
        timer.start()
    try:
        yield
    finally:
        # The child has just been waited for. The timers end before another process can get its id.
        for timer in timers:
            timer.cancel()
            timer.join()


def end_like(status: int) -> None:
    """End this process as the script has ended: with its status, or by the same signal."""
    sys.stdout.flush()
    sys.stderr.flush()
    if status < 0:
        # SIGKILL has no handler that could be replaced.
        with suppress(OSError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def _wait(
    child: int,
    waited: set[signal.Signals],
    note_signal: Callable[[], object],
    note_end: Callable[[int], object],
) -> int:
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        number, is_for_all = _next_signal(waited)
        if number in ENDINGS:
            note_end(number)
        # The terminal has sent a Ctrl-C to the script already. If it came twice, it would end a
        # script that handles the first one.
        if number != signal.SIGCHLD and not is_for_all:
            os.kill(child, number)
            if number == signal.SIGUSR1:
                note_signal()


def _next_signal(waited: set[signal.Signals]) -> tuple[int, bool]:
    """The next signal, and whether the script has received it, too."""
    if hasattr(signal, "sigwaitinfo"):
        info = signal.sigwaitinfo(waited)
        return info.si_signo, info.si_code == FROM_TERMINAL
    # macOS does not tell the origin of a signal: SIGINT is taken for Ctrl-C.
    number = signal.sigwait(waited)
    return number, number == signal.SIGINT


def make_record_folder() -> Path:
    """Make a temporary folder for this process; remove folders of commands and scripts that have
    ended."""
    _remove_abandoned(Path(tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))


def _remove_abandoned(parent: Path) -> None:
    folders = [(path, NAME.fullmatch(path.name)) for path in parent.glob(f"{PREFIX}*")]
    abandoned = [path for path, name in folders if name and not psutil.pid_exists(int(name[1]))]
    if not abandoned:
        return
    # A script that has outlived its killed command still writes to the folder in its arguments.
    used = {word for process in psutil.process_iter(["cmdline"]) for word in _words(process)}
    for path in abandoned:
        # In a shared temporary folder anyone may have made a link of this name.
        if str(path) not in used and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)


def _words(process: psutil.Process) -> list[str]:
    # psutil gives None if the words can't be read.
    return process.info["cmdline"] or []
