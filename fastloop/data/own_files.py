"""Files of a user's own that a dataset reads by their path."""

from __future__ import annotations

from pathlib import Path

from fastloop.core.files import file_fingerprint, fingerprint
from fastloop.core.types import BadData, Tree, Unsupported


def own_path(path: str | None, option: str, content: str) -> Path:
    """The path that `dataset.path` has; raises Unsupported without one, BadData if there is nothing
    at it.

    content: what lies there, for the messages.
    """
    if path is None:
        raise Unsupported(f"{option}: dataset.path=PATH names {content}")
    if not Path(path).exists():
        raise BadData(f"dataset.path={path}: no such file or folder; {option} reads {content}")
    return Path(path)


def files_below(path: Path, suffix: str) -> list[Path]:
    """The file itself or, of a folder, the files with this suffix below it, sorted.

    Raises BadData if there is none. Hidden files, and those in hidden folders, are left out.
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
    """A fingerprint of files, each as of `file_fingerprint`, and of settings."""
    return fingerprint([(str(each), file_fingerprint(each)) for each in files], *settings)


def sample_of(inputs: dict[str, Tree], label: Tree | None) -> Tree:
    """A sample of named inputs: of a single one its value, else a dict; with a label the tuple of
    both."""
    tree = next(iter(inputs.values())) if len(inputs) == 1 else inputs
    return tree if label is None else (tree, label)
