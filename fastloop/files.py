"""Files and folders that are either whole or not there, and where outputs go."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

EDGE_BYTES = 1 << 20


def outputs_folder() -> Path:
    """$FASTLOOP_OUTPUTS, or outputs/ under the working folder."""
    return Path(os.environ.get("FASTLOOP_OUTPUTS", "outputs")).absolute()


def sweep_folders() -> list[Path]:
    """Every sweep's folder below the outputs folder, the oldest first."""
    return sorted(path for path in outputs_folder().glob("[0-9]*-*-*/*") if path.is_dir())


def remove_unused(sweep_folder: Path) -> None:
    """Remove an output folder in which nobody but Hydra has written, and its empty parents.

    Never goes above the outputs folder.
    """
    top, sweep_folder = outputs_folder(), sweep_folder.absolute()
    if top not in sweep_folder.parents or not sweep_folder.is_dir():
        return
    hydras = sweep_folder / "multirun.yaml"
    others = [path for path in sweep_folder.iterdir() if path != hydras]
    if any(not path.is_dir() or any(path.iterdir()) for path in others):
        return
    hydras.unlink(missing_ok=True)
    with suppress(OSError):  # a mounted file system; another node that writes there meanwhile
        for one in [*others, sweep_folder, *sweep_folder.parents]:
            one.rmdir()
            if one == top:
                return


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of that file or folder; another process waits until it is released."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.name}.lock"):
        yield


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """A path beside the target that takes its place at the end, or vanishes on any error.

    Hold the target's lock around it: what an earlier, killed writer left there is removed first.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.parent / f".{target.name}.partial"
    remove(beside)
    try:
        yield beside
        if beside.is_dir():
            remove(target)
        os.replace(beside, target)
    except OSError as error:
        if error.filename:
            raise
        # a full disk is told without a name, and by numpy without its number
        said = error.strerror or f"{error} (is the disk full?)"
        raise OSError(error.errno or errno.EIO, said, str(target)) from error
    finally:
        remove(beside)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_text(target: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never a part."""
    with written_beside(target) as beside:
        beside.write_text(text)


def fingerprint(*parts: object) -> str:
    """32 hexadecimal digits that change with any of the parts' repr."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def source_of(thing: object) -> str:
    """Changes with the source file of the thing's class, or of the `target` that it names; constant
    where there is none to read."""
    modules = [type(thing).__module__, str(getattr(thing, "target", "")).rpartition(".")[0]]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules]
    texts = [Path(path).read_text() for path in files if path and path.endswith(".py")]
    return fingerprint(*texts) if texts else ""


def flushed(path: Path) -> None:
    """Return when the file is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def edges(path: Path) -> str:
    """Changes with the file's size or its first or last MiB; reads no more than these."""
    size, digest = path.stat().st_size, hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        digest.update(file.read(EDGE_BYTES))
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read(EDGE_BYTES))
    return fingerprint(size, digest.hexdigest())


def file_fingerprint(path: Path) -> str:
    """Changes with the file's name, edges or time of change."""
    return fingerprint(path.name, path.stat().st_mtime_ns, edges(path))
