"""A lock for the machine: concurrent benchmarks would disturb each other's measurements."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.core.files import write_text
from fastloop.core.types import MachineBusy


@contextmanager
def lock_machine(wait: bool) -> Iterator[None]:
    """Keep other processes of fastloop from measuring on this machine until the context ends.

    If another process holds the lock, waits for it with `wait`, and raises MachineBusy without. The
    kernel releases the lock when the process ends, however it ends.
    """
    path = Path(tempfile.gettempdir()) / "fastloop-measures.lock"
    holder_file = path.with_suffix(".holder")
    lock = FileLock(path, timeout=-1 if wait else 0, mode=0o666, poll_interval=1)
    try:
        lock.acquire()
    except Timeout:
        holder = holder_file.read_text() if holder_file.exists() else "unknown"
        hint = "wait=true waits for it, allow_concurrent=true measures concurrently, without ranks"
        raise MachineBusy(f"another fastloop measures on this machine ({holder}): {hint}") from None
    try:
        with contextlib.suppress(OSError):  # the file is only for the message above
            write_text(holder_file, f"process {os.getpid()} in {Path.cwd()}")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder_file.unlink(missing_ok=True)
        lock.release()
