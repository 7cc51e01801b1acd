"""The version that `against=` names (a commit, a tag, a branch or a folder) and its run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fastloop.core.types import UsageError
from fastloop.processes.git_worktree import (
    check_out,
    find_commit,
    find_repository,
    remove_left_worktrees,
)
from fastloop.sweep.version_sides import BASE, CANDIDATE, Version

ALLOWED = "a commit, tag or branch of this repository, or a folder"
NATIVE = Path("fastloop/fastloader/native")
"""Folder of the sources of fastloop's native parts, in a checkout of fastloop."""
Kind = Literal["commit", "folder"]


@dataclass(frozen=True, kw_only=True)
class VersionSource:
    """A version that `against=` names."""

    kind: Kind
    against: str
    """The value of `against=`."""
    commit: str = ""
    """The hash of the commit."""

    @property
    def label(self) -> str:
        """The name in messages."""
        return f"{self.against} ({self.commit[:8]})" if self.commit else self.against


def find_source(against: str, here: Path) -> VersionSource:
    """The version that `against=` names in this folder, before anything is made of it.

    Raises UsageError with what is allowed.
    """
    path = Path(against).expanduser()
    is_path = against.startswith((".", "/", "~"))
    if not is_path and (commit := find_commit(here, against)):
        return VersionSource(kind="commit", against=against, commit=commit)
    if path.is_dir():
        return VersionSource(kind="folder", against=str(path))
    shallow = ""
    if find_repository(here) and not is_path:
        shallow = "; CI checks out one commit only, and the others with fetch-depth: 0"
    raise UsageError(f"against={against}: no such commit or folder; allowed: {ALLOWED}{shallow}")


@contextmanager
def open_versions(source: VersionSource, here: Path, folder: Path) -> Iterator[dict[str, Version]]:
    """Both versions, by BASE and CANDIDATE: what `against=` names, and what is here now.

    here: the working folder. folder: below the outputs folder, for a worktree that ends with the
    context. Raises UsageError if the version can't be made.
    """
    repository = find_repository(here)
    if repository:
        remove_left_worktrees(repository, folder.parent)
    if source.kind != "commit":
        yield _versions(source, here, here, Path(source.against).absolute())
        return
    # find_source has found the commit in it.
    assert repository is not None
    with check_out(repository, source.commit, folder) as worktree:
        tree = worktree / here.resolve().relative_to(repository)
        if not tree.is_dir():
            raise UsageError(f"against={source.against}: this commit has no folder {here.name}")
        yield _versions(source, here, repository, worktree)


def _versions(source: VersionSource, here: Path, top: Path, tree: Path) -> dict[str, Version]:
    """top, tree: the folder that holds the user's code, and the one that takes its place."""
    path = _import_path(here)
    top, tree = top.resolve(), tree.resolve()
    _keep_native_parts(source, top, tree)
    # Folders of the user's code that an editable installation has added are moved as well.
    moved = [str(tree / Path(each).relative_to(top)) for each in path if _is_below(each, top)]
    base = Version(
        label=source.label,
        path=(*dict.fromkeys([*moved, *(each for each in path if not _is_below(each, top))]),),
        tree=str(tree),
        elsewhere=str(top),
    )
    return {BASE: base, CANDIDATE: Version(label="the working folder", path=path)}


def _import_path(here: Path) -> tuple[str, ...]:
    """The folders of sys.path that are not of Python or its packages, the working folder first."""
    given = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    own = [each for each in sys.path if each and Path(each).is_dir()]
    folders = [Path(each).resolve() for each in [here, *given, *own]]
    return (*dict.fromkeys(str(each) for each in folders if not _is_of_python(each)),)


def _is_of_python(folder: Path) -> bool:
    is_standard = any(folder.is_relative_to(Path(each).resolve() / "lib") for each in _PREFIXES)
    return is_standard or bool({"site-packages", "dist-packages"} & {*folder.parts})


_PREFIXES = {sys.prefix, sys.base_prefix}


def _is_below(folder: str, top: Path) -> bool:
    return Path(folder).is_relative_to(top)


def _keep_native_parts(source: VersionSource, top: Path, tree: Path) -> None:
    """Give a tree of fastloop the compiled parts of the working folder, if their sources are equal.

    Raises UsageError if they differ: without them the version would be slower than it is.
    """
    parts = [*(top / NATIVE.parent).glob("*.so")]
    if not parts or not (tree / NATIVE).is_dir() or source.kind != "commit":
        return
    if _texts(top / NATIVE) != _texts(tree / NATIVE):
        allowed = "allowed: a commit with the same sources in C, or a folder that is compiled"
        raise UsageError(f"against={source.against}: the native parts differ; {allowed}")
    for part in parts:
        shutil.copy(part, tree / NATIVE.parent / part.name)


def _texts(folder: Path) -> dict[str, bytes]:
    files = [each for each in sorted(folder.rglob("*")) if each.suffix in (".c", ".h")]
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}
