"""One benchmark at a time on a machine: two that run at once measure each other."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.files import write_text


class Occupied(Exception):  # noqa: N818 - it is a state of the machine
    """Somebody else measures here; the message says who, and what may be done."""


@contextmanager
def alone(wait: bool) -> Iterator[None]:
    """Measure alone on this machine; raises Occupied unless it may wait for the other's end.

    The kernel holds the lock for the process, so that it ends with it, however that ends.
    """
    path = Path(tempfile.gettempdir()) / "fastloop-measures.lock"
    holder = path.with_suffix(".holder")
    lock = FileLock(path, timeout=-1 if wait else 0, mode=0o666, poll_interval=1)
    try:
        lock.acquire()
    except Timeout:
        who = holder.read_text() if holder.exists() else "unknown"
        said = "wait=true waits for it, allow_concurrent=true measures beside it, unranked"
        raise Occupied(f"another fastloop measures on this machine ({who}): {said}") from None
    try:
        with contextlib.suppress(OSError):  # it is only for the message
            write_text(holder, f"process {os.getpid()} in {Path.cwd()}")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()
