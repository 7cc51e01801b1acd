"""A lock for the machine: concurrent benchmarks would disturb each other's measurements."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.core.files import write_text
from fastloop.core.printable import printable
from fastloop.core.types import MachineBusy

HOLDER_LENGTH = 500
"""Maximum number of characters of the holder that are printed."""


@contextmanager
def lock_machine(wait: bool, check: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Keep other processes of fastloop from measuring on this machine until the context ends.

    If another process holds the lock, waits for it with `wait`, and raises MachineBusy without.
    Prints what it waits for. The kernel releases the lock when the process ends, however it ends.

    check: called before waiting, so that what it raises is not raised only after the wait.
    """
    path = _lock_path()
    holder_file = path.with_suffix(".holder")
    lock = FileLock(path, timeout=0, mode=0o666, poll_interval=1)
    try:
        lock.acquire()
    except Timeout:
        busy = f"another fastloop measures on this machine ({_read_holder(holder_file)})"
        if not wait:
            hint = "wait=true waits for it, allow_concurrent=true measures concurrently"
            raise MachineBusy(f"{busy}: {hint}, without ranks") from None
        check()
        print(f"{busy}: waiting for its end", file=sys.stderr, flush=True)
        lock.acquire(timeout=-1)
    except OSError as error:  # a folder or a link in its place
        raise MachineBusy(f"{path}: {error.strerror or error}; delete it") from None
    try:
        with contextlib.suppress(OSError):  # the file is only for the message above
            write_text(holder_file, f"process {os.getpid()} in {Path.cwd()}")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder_file.unlink(missing_ok=True)
        lock.release()


def _lock_path() -> Path:
    """FASTLOOP_LOCK, or a file where all commands of the machine look for it, whatever their
    TMPDIR."""
    if named := os.environ.get("FASTLOOP_LOCK"):
        return Path(named).absolute()
    folder = Path("/tmp") if os.name == "posix" else Path(tempfile.gettempdir())
    return folder / "fastloop-measures.lock"


def _read_holder(path: Path) -> str:
    """The process and the folder that the file names; any user may have written anything to it."""
    try:
        text = path.read_text(errors="replace")[:HOLDER_LENGTH]
    except OSError:
        return "unknown"
    return printable(" ".join(text.split()))
