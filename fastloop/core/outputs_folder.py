"""Find, make, claim and remove the outputs folder and the folders of sweeps in it."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.core.atomic_files import remove, write_text
from fastloop.core.types import UsageError

CLAIM = ".measured"
"""Lock file in a sweep's folder, which the command that measures the sweep holds."""


def outputs_folder() -> Path:
    """$FASTLOOP_OUTPUTS, or outputs/ in the working directory."""
    return Path(os.environ.get("FASTLOOP_OUTPUTS") or "outputs").absolute()


def nearest_existing(folder: Path) -> Path:
    """The folder, or the nearest of its parents that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def make_trial_file(folder: Path) -> None:
    """Make a file in the folder, or in the nearest parent that exists, and remove it.

    Raises OSError if that fails, even on read-only mounts and if a quota is used up, which
    permissions do not show.
    """
    tempfile.TemporaryFile(dir=nearest_existing(folder)).close()


def refuse_unwritable(shown: str, path: Path) -> None:
    """Raise UsageError unless a file can be written at the path; nothing is written.

    shown: the setting and its value, the beginning of the message.
    """
    # The folders above the file are made when it is written, so the nearest one that exists has to
    # be writable.
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        make_trial_file(path.absolute().parent)
    except OSError as error:
        allowed = "allowed: the path of a file that can be written"
        raise UsageError(f"{shown}: {error.strerror}; {allowed}") from error


def make_sweep_folder(folder: Path) -> None:
    """Make a sweep's folder; raises UsageError, naming the outputs folder, if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # error.filename is the first parent that could not be made, not the folder itself.
        where = f"{error.strerror}: '{error.filename}'"
        raise UsageError(f"the outputs folder (FASTLOOP_OUTPUTS): {where}") from error


@contextmanager
def hide_from_git() -> Iterator[None]:
    """Let git ignore the outputs folder, if it is made inside of the context."""
    # A folder that existed before is left as it is: its owner may track results in it.
    folder = outputs_folder()
    existed = folder.exists()
    try:
        yield
    finally:
        if not existed and folder.is_dir():
            # The command itself tells of a full disk.
            with suppress(OSError):
                write_text(folder / ".gitignore", "# Made by fastloop.\n*\n")


def sweep_folders() -> list[Path]:
    """Folders of all sweeps in the outputs folder, oldest first."""
    return sorted(path for path in outputs_folder().glob("[0-9]*-*-*/*") if path.is_dir())


def remove_unused(sweep_folder: Path) -> None:
    """Remove a sweep's folder to which only Hydra has written, and its empty parents.

    The outputs folder is the last parent considered.
    """
    top = outputs_folder()
    sweep_folder = sweep_folder.absolute()
    if top not in sweep_folder.parents or not sweep_folder.is_dir():
        return
    hydra_file = sweep_folder / "multirun.yaml"
    others = [path for path in sweep_folder.iterdir() if path != hydra_file]
    if any(not path.is_dir() or any(path.iterdir()) for path in others):
        return
    hydra_file.unlink(missing_ok=True)
    # rmdir fails for a folder that is not empty, for a mount point, and if another node is writing
    # there; all folders above it then stay, too.
    with suppress(OSError):
        for folder in [*others, sweep_folder, *sweep_folder.parents]:
            folder.rmdir()
            if folder == top:
                return


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
    # Not every file system has locks: then there is no claim.
    except OSError:
        is_claimed = False
    else:
        is_claimed = True
    # The context's body runs outside of the handler, which would be the context of its errors.
    try:
        yield
    finally:
        if is_claimed:
            _end_claim(lock)


def _end_claim(lock: FileLock) -> None:
    # The file is removed while the lock is still held, so no other command has claimed it. A
    # command that has opened the file before gets the lock of a deleted file. FileLock notices
    # this, and opens the new file.
    remove(Path(lock.lock_file))
    lock.release()
