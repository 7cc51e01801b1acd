"""Files and folders that are written atomically, fingerprints of files, and the outputs folder."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.core.text import encodable
from fastloop.core.types import UsageError

CLAIM = ".measured"
"""Lock file in a sweep's folder, which the command that measures the sweep holds."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
EDGE_BYTES = 1 << 20
"""Bytes at each end of a file that `edge_digest` reads."""


def outputs_folder() -> Path:
    """$FASTLOOP_OUTPUTS, or outputs/ in the working directory."""
    return Path(os.environ.get("FASTLOOP_OUTPUTS") or "outputs").absolute()


def make_sweep_folder(folder: Path) -> None:
    """Make a sweep's folder; raises UsageError, naming the outputs folder, if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # error.filename is the first parent that could not be made, not the folder itself
        where = f"{error.strerror}: '{error.filename}'"
        raise UsageError(f"the outputs folder (FASTLOOP_OUTPUTS): {where}") from error


def sweep_folders() -> list[Path]:
    """Folders of all sweeps in the outputs folder, oldest first."""
    return sorted(path for path in outputs_folder().glob("[0-9]*-*-*/*") if path.is_dir())


def remove_unused(sweep_folder: Path) -> None:
    """Remove a sweep's folder to which only Hydra has written, and its empty parents.

    The outputs folder is the last parent considered.
    """
    top, sweep_folder = outputs_folder(), sweep_folder.absolute()
    if top not in sweep_folder.parents or not sweep_folder.is_dir():
        return
    hydra_file = sweep_folder / "multirun.yaml"
    others = [path for path in sweep_folder.iterdir() if path != hydra_file]
    if any(not path.is_dir() or any(path.iterdir()) for path in others):
        return
    hydra_file.unlink(missing_ok=True)
    # rmdir fails for a folder that is not empty, for a mount point, and if another node is writing
    # there; all folders above it then stay, too
    with suppress(OSError):
        for folder in [*others, sweep_folder, *sweep_folder.parents]:
            folder.rmdir()
            if folder == top:
                return


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder; other processes wait until it is released."""
    # the lock is a file beside the target, because the target may not exist yet and is replaced by
    # a rename, which would leave waiting processes with the lock of the old file
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.name}.lock"):
        yield


@contextmanager
def claim_sweep_folder(folder: Path) -> Iterator[None]:
    """Keep other commands from writing to a sweep's folder until the context ends; raises
    UsageError if one does."""
    # The machine's lock is not enough: a command on another machine may use the same folder, and
    # allow_concurrent=true takes no lock. Two commands would each write results without the trials
    # of the other.
    lock = FileLock(folder / CLAIM, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(f"{folder}: another command measures this sweep") from None
    # Not every file system has locks.
    except OSError:
        yield
        return
    try:
        yield
    finally:
        # The lock is still held while its file is removed: another command can't have claimed this
        # file. One that has opened it before gets a lock of a file without a name, which FileLock
        # notices: it opens the new file.
        remove(folder / CLAIM)
        lock.release()


@contextmanager
def write_beside(target: Path) -> Iterator[Path]:
    """A path next to the target that replaces it on exit, or is removed on any error.

    The caller must hold the target's lock: remains of an earlier, killed writer are removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    beside, replaced = (target.parent / f".{target.name}.{end}" for end in ("partial", "replaced"))
    _finish_replacing(target, replaced)
    remove(beside)
    try:
        yield beside
        # os.replace replaces a file in one step, but no folder that has content. Such a folder gets
        # another name until the new one is there: removing it takes long, and may be interrupted.
        if beside.is_dir() and os.path.lexists(target):
            os.replace(target, replaced)
        os.replace(beside, target)
    except OSError as error:
        if error.filename:
            raise
        # A write on a full disk raises an error without a filename, and numpy's has no errno
        # either. Errors of paths have one, and say enough.
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
    # a link to a folder is removed itself; rmtree refuses links
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write a file as UTF-8, atomically: a reader sees either the old or the new text."""
    with write_beside(target) as beside:
        # By default Python uses the encoding of the locale, which may lack characters of the text.
        # Paths may have names that are no UTF-8; their bytes are written as they are.
        try:
            data = text.encode(errors="surrogateescape")
        # a half of a surrogate pair that is no byte of a name
        except UnicodeEncodeError:
            data = encodable(text).encode()
        beside.write_bytes(data)


def fingerprint(*parts: object) -> str:
    """32 hexadecimal digits that change with the repr of any part."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def stable_repr(value: object) -> str:
    """The value's repr without addresses of objects, which differ from process to process."""
    return ADDRESS.sub("", repr(value))


def flush_to_disk(path: Path) -> None:
    """Return once the file is on disk."""
    # fsync writes all dirty pages of the file, also those written through other descriptors
    with path.open("rb") as file:
        os.fsync(file.fileno())


def edge_digest(path: Path) -> str:
    """Fingerprint of a file's size and of its first and last MiB; reads no more than these."""
    size, digest = path.stat().st_size, hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(EDGE_BYTES))
        # If the file is smaller than 2 MiB, its middle is read twice, which does no harm.
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read(EDGE_BYTES))
    return fingerprint(size, digest.hexdigest())


def file_fingerprint(path: Path) -> str:
    """Fingerprint of a file's name, modification time, size and first and last MiB."""
    return fingerprint(path.name, path.stat().st_mtime_ns, edge_digest(path))
