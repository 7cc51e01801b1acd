"""Lock the machine while fastloop measures: concurrent measurements would disturb each other."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.core.atomic_files import write_text
from fastloop.core.text import printable
from fastloop.core.types import MachineBusy
from fastloop.sweep.settings import SweepSettings

HOLDER_LENGTH = 500
"""Maximum number of bytes that are read and printed about the holder, the process that has the
lock."""
NO_LINK, NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
"""Flags for opening the lock file: do not follow a link, and do not wait for the other end of a
pipe. Any user may have placed one of these in /tmp."""
WAIT_HINT = "wait=true waits for it, allow_concurrent=true measures concurrently, without ranks"
"""The hint in the message of a command that has these settings."""


@contextmanager
def lock_machine(
    wait: bool, check: Callable[[], None] = lambda: None, hint: str = ""
) -> Iterator[None]:
    """Keep other processes of fastloop from measuring on this machine until the context ends.

    If another process holds the lock, this function prints the id and the folder of that process
    and waits for its end or, without `wait`, raises MachineBusy. It also raises MachineBusy if the
    lock file can't be used.

    check: called before the wait, so that its errors are reported at once. hint: for the message of
    MachineBusy, the settings with which the command runs nevertheless; empty if it has none.
    """
    # The kernel releases the lock when the process ends, however it ends.
    path = _lock_path()
    _check_lock_file(path)
    holder_file = holder_path(path)
    lock = FileLock(path, timeout=0, mode=0o666, poll_interval=1)
    try:
        lock.acquire()
    except Timeout:
        busy = f"another fastloop measures on this machine ({_read_holder(holder_file)})"
        if not wait:
            raise MachineBusy(f"{busy}: {hint}" if hint else busy) from None
        check()
        print(f"{busy}: waiting for its end", file=sys.stderr, flush=True)
        lock.acquire(timeout=-1)
    except OSError as error:
        raise MachineBusy(_refusal(path, error.strerror or str(error))) from None
    try:
        # The file only serves the message above, so a full disk does not matter.
        with contextlib.suppress(OSError):
            write_text(holder_file, f"process {os.getpid()} in {Path.cwd()}")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder_file.unlink(missing_ok=True)
        lock.release()


def lock_unless_concurrent(
    settings: SweepSettings, check: Callable[[], None] = lambda: None
) -> AbstractContextManager[None]:
    """The lock of the machine for a sweep; no lock if the sweep may run beside other measurements.

    check: as for `lock_machine`.
    """
    # With wait=true, the sweep takes the lock in any case.
    if settings.allow_concurrent and not settings.wait:
        return nullcontext()
    return lock_machine(settings.wait, check, WAIT_HINT)


def holder_path(path: Path) -> Path:
    """The file next to the lock with the id and the folder of the process that holds it."""
    return path.with_name(f"{path.name}.holder")


def _check_lock_file(path: Path) -> None:
    """Raise MachineBusy unless there is an empty file at the path, or one can be created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _open(path)
    # For example, there is a folder or a link at the path.
    except OSError as error:
        raise MachineBusy(_refusal(path, error.strerror or str(error))) from None
    status = os.fstat(descriptor)
    os.close(descriptor)
    # filelock empties the file that it locks, and its mode lets everybody write to it. fastloop's
    # own is always empty; any other file must not be touched.
    if not stat.S_ISREG(status.st_mode) or status.st_size:
        raise MachineBusy(_refusal(path, "not a lock file of fastloop"))


def _open(path: Path) -> int:
    """Open the file, and create it if there is none; raises OSError."""
    flags = os.O_RDWR | NO_LINK | NO_WAIT
    try:
        # First without O_CREAT: with it, Linux refuses to open a file of another user in a sticky
        # folder such as /tmp (proc_sys_fs(5), protected_regular).
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        # All users must be able to open the file, whatever this user's umask is.
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o666)
        return descriptor


def _refusal(path: Path, reason: str) -> str:
    if os.environ.get("FASTLOOP_LOCK"):
        return f"FASTLOOP_LOCK={path}: {reason}; allowed: the path of a new or an empty file"
    return f"{path}: {reason}; delete it"


def _lock_path() -> Path:
    """Path of the lock file: FASTLOOP_LOCK, or a path that all commands of the machine share."""
    # /tmp is the same for everybody, while users and jobs of a cluster have their own TMPDIRs.
    if named := os.environ.get("FASTLOOP_LOCK"):
        return Path(named).absolute()
    folder = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())
    return folder / "fastloop-measures.lock"


def _read_holder(path: Path) -> str:
    """Read the process and the folder that the file names, safe to print."""
    # Any user may have written anything to the file, or have put a pipe or a link in its place.
    try:
        descriptor = os.open(path, os.O_RDONLY | NO_LINK | NO_WAIT)
    except OSError:
        return "unknown"
    try:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        content = os.read(descriptor, HOLDER_LENGTH) if is_file else b"unknown"
    finally:
        os.close(descriptor)
    return printable(" ".join(content.decode(errors="replace").split()))
