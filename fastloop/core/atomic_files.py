"""Files and folders that are written atomically, under a lock, and removed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.core.text import encodable


@contextmanager
def hold_lock(path: Path, before_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock of a file or folder; other processes wait until it is released.

    before_wait: called if another process holds the lock; an error that it raises ends the wait.
    """
    # The lock is a file beside the target, because the target may not exist yet and is replaced by
    # a rename, which would leave waiting processes with the lock of the old file.
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.parent / f".{path.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        before_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def write_beside(target: Path) -> Iterator[Path]:
    """A path next to the target that replaces it on exit, or is removed on any error.

    The caller must hold the target's lock: remains of an earlier, killed writer are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f".{target.name}.partial"
    replaced = target.parent / f".{target.name}.replaced"
    _finish_replacing(target, replaced)
    remove(beside)
    try:
        yield beside
        # os.replace replaces a file in one step, but not a folder with content. The old folder is
        # renamed until the new one is in its place, because removing it takes long and may be
        # interrupted.
        if beside.is_dir() and os.path.lexists(target):
            os.replace(target, replaced)
        os.replace(beside, target)
    except OSError as error:
        if error.filename:
            raise
        # A write to a full disk raises an error without a filename, and numpy's has no errno
        # either. Errors about paths have a filename, and need no further words.
        message = error.strerror or f"{error} (is the disk full?)"
        raise OSError(error.errno or errno.EIO, message, str(target)) from error
    finally:
        # A folder with a file that another process has open can't be removed on NFS. The next
        # writer removes it.
        with suppress(OSError):
            _finish_replacing(target, replaced)
        remove(beside)


def _finish_replacing(target: Path, replaced: Path) -> None:
    """Remove the folder that was replaced or, if nothing has taken its place, put it back."""
    if not os.path.lexists(replaced):
        return
    if os.path.lexists(target):
        remove(replaced)
    else:
        os.replace(replaced, target)


def remove_partial(folder: Path) -> None:
    """Remove the unfinished files and folders that killed writers have left in the folder."""
    for path in folder.glob(".*.partial"):
        name = path.name.removesuffix(".partial")
        # A live writer holds this lock. timeout=0 gives up at once, with filelock's Timeout, which
        # is an OSError.
        with suppress(OSError), FileLock(folder / f"{name}.lock", timeout=0):
            remove(path)
    for path in folder.glob(".*.replaced"):
        name = path.name.removesuffix(".replaced")
        with suppress(OSError), FileLock(folder / f"{name}.lock", timeout=0):
            _finish_replacing(folder / name.removeprefix("."), path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    # A link to a folder is removed itself; rmtree refuses links.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write a file as UTF-8, atomically: a reader sees either the old or the new text."""
    with write_beside(target) as beside:
        # By default Python uses the encoding of the locale, which may lack characters of the text.
        # Paths may have names that are not UTF-8; their bytes are written as they are.
        try:
            data = text.encode(errors="surrogateescape")
        # The text has half of a surrogate pair that is not a byte of a name.
        except UnicodeEncodeError:
            data = encodable(text).encode()
        beside.write_bytes(data)


def flush_to_disk(path: Path) -> None:
    """Return once the file is on disk."""
    # fsync writes all dirty pages of the file, including those written through other descriptors.
    with path.open("rb") as file:
        os.fsync(file.fileno())
