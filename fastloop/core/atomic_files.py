"""Write files and folders atomically, under a lock, and remove files and folders."""

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

    before_wait: called if another process holds the lock. If before_wait raises an error, there is
    no wait.
    """
    # The lock is a file beside the target, because the target may not exist yet. The target is also
    # replaced by a rename, after which waiting processes would hold the lock of the old file.
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
    """Yield a path beside the target, at which the caller writes a new file or folder.

    On exit, the new file or folder replaces the target. On any error it is removed. The caller must
    hold the target's lock, because the remains of an earlier, killed writer are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f".{target.name}.partial"
    replaced = target.parent / f".{target.name}.replaced"
    _finish_replacing(target, replaced)
    remove(beside)
    try:
        yield beside
        # os.replace replaces a file in one step, but not a folder with content. The removal of the
        # old folder takes long, and may be interrupted. So the old folder is renamed, and removed
        # only when the new one is in its place.
        if beside.is_dir() and os.path.lexists(target):
            os.replace(target, replaced)
        os.replace(beside, target)
    except OSError as error:
        if error.filename:
            raise
        # An error about a path has a filename, and is raised as it is. A write to a full disk
        # raises an error without a filename, and numpy's error has no errno either.
        message = error.strerror or f"{error} (is the disk full?)"
        raise OSError(error.errno or errno.EIO, message, str(target)) from error
    finally:
        # A folder with a file that another process has open can't be removed on NFS. The next
        # writer removes it.
        with suppress(OSError):
            _finish_replacing(target, replaced)
        remove(beside)


def _finish_replacing(target: Path, replaced: Path) -> None:
    """Remove the old folder or, if nothing has taken its place, rename it to the target.

    replaced: path of the old folder, which need not exist.
    """
    if not os.path.lexists(replaced):
        return
    if os.path.lexists(target):
        remove(replaced)
    else:
        os.replace(replaced, target)


def remove_partial(folder: Path) -> None:
    """Remove the unfinished files and folders that killed writers have left in the folder.

    A folder that such a writer has renamed but not yet replaced gets its name back.
    """
    for path in folder.glob(".*.partial"):
        name = path.name.removesuffix(".partial")
        # A living writer holds this lock. With timeout=0, filelock then raises Timeout at once,
        # which is an OSError.
        with suppress(OSError), FileLock(folder / f"{name}.lock", timeout=0):
            remove(path)
    for path in folder.glob(".*.replaced"):
        name = path.name.removesuffix(".replaced")
        with suppress(OSError), FileLock(folder / f"{name}.lock", timeout=0):
            _finish_replacing(folder / name.removeprefix("."), path)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    # Of a link to a folder, only the link is removed; rmtree refuses links.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write a file as UTF-8, atomically: a reader sees either the old or the new text."""
    with write_beside(target) as beside:
        # Python's default is the encoding of the locale, which may lack characters of the text. A
        # path in the text may have bytes that are not UTF-8; these are written as they are.
        try:
            data = text.encode(errors="surrogateescape")
        # The text has a surrogate that does not stand for a byte of a path.
        except UnicodeEncodeError:
            data = encodable(text).encode()
        beside.write_bytes(data)


def flush_to_disk(path: Path) -> None:
    """Wait until all pages of the file are on disk."""
    # fsync writes all dirty pages of the file, including those written through other descriptors.
    with path.open("rb") as file:
        os.fsync(file.fileno())
