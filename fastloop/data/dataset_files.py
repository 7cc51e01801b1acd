"""Generate the files of a dataset on first use, or find a user's own files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastloop.core.atomic_files import hold_lock
from fastloop.core.fingerprints import file_fingerprint, fingerprint
from fastloop.core.outputs_folder import outputs_folder
from fastloop.core.types import BadData, Tree, Unsupported

MARKER = ".fastloop-data"
"""Name of an empty file that marks a folder for generated data, outside of outputs/data."""


def create_once(path: Path, make: Callable[[], None], root: str, own_data: str) -> None:
    """Call `make` to generate a file or folder if it is missing, in one process at a time.

    path: the file or folder, below the root. make: generates it. root: the value of dataset.root.
    own_data: a text on the settings for a user's own data, for the message. Raises BadData, with
    dataset.root in the message, if the root holds other files or can't be written.
    """
    try:
        if path.exists():
            return
        _claim(Path(root), own_data)
        # While this process waits for the lock, another process may have generated the path.
        with hold_lock(path):
            if not path.exists():
                make()
    except OSError as error:
        raise BadData(f"dataset.root={root}: {error}") from error


def _claim(root: Path, own_data: str) -> None:
    """Mark a folder as one for generated data; raises BadData if it holds other files.

    own_data: as in `create_once`. Folders in outputs/data need no mark.
    """
    if root.absolute().is_relative_to(outputs_folder() / "data") or (root / MARKER).exists():
        return
    if root.exists() and any(root.iterdir()):
        reason = "it holds files, and generated data would be written between them"
        allowed = f"allowed: a new or an empty folder; {own_data}"
        raise BadData(f"dataset.root={root}: {reason}; {allowed}")
    root.mkdir(parents=True, exist_ok=True)
    (root / MARKER).touch()


def own_path(path: str | None, option: str, content: str, setting: str = "dataset.path") -> Path:
    """The path of the user's own files.

    path: the value of the setting; None if the setting is not set. option, content and setting, for
    the messages: the option that reads the files, a description of them, and the setting's name.
    Raises Unsupported if the setting is not set, and BadData if nothing is at the path.
    """
    if path is None:
        raise Unsupported(f"{option}: {setting}=PATH names {content}")
    try:
        exists = Path(path).exists()
    # The name may be too long for the file system.
    except OSError as error:
        raise BadData(f"{setting}={path}: {error.strerror}; {option} reads {content}") from error
    if not exists:
        raise BadData(f"{setting}={path}: no such file or folder; {option} reads {content}")
    return Path(path)


def files_below(path: Path, suffix: str) -> list[Path]:
    """The files with this suffix below a folder, sorted; for a file, only the file itself.

    Hidden files, and files in hidden folders, are left out. Raises BadData if no file is left.
    """
    if path.is_file():
        return [path]
    found = sorted(each for each in path.rglob(f"*{suffix}") if each.is_file())
    names = [each.relative_to(path).parts for each in found]
    shown = [
        each
        for each, parts in zip(found, names, strict=True)
        if not any(part.startswith(".") for part in parts)
    ]
    if not shown:
        raise BadData(f"{path}: no {suffix} file in this folder")
    return shown


def files_fingerprint(files: list[Path], *settings: object) -> str:
    """A fingerprint of files, from the `file_fingerprint` of each, and of settings."""
    return fingerprint([(str(each), file_fingerprint(each)) for each in files], *settings)


def sample_of(inputs: dict[str, Tree], label: Tree | None) -> Tree:
    """A sample of named inputs: the value of a single input, or a dict of several inputs.

    label: if it is not None, the sample is the tuple (inputs, label).
    """
    tree = next(iter(inputs.values())) if len(inputs) == 1 else inputs
    return tree if label is None else (tree, label)
