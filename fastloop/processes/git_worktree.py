"""Commits of the user's git repository in folders of their own, which are removed again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.core.atomic_files import remove
from fastloop.core.types import UsageError

WORKTREE, LOCK = "worktree", ".worktree.lock"
"""Names of a commit's folder, and of the lock beside it that its command holds."""
NO_HOOKS = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
"""Settings of git with which none of the user's hooks runs, such as one that installs packages."""
OF_HOOKS = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_COMMON_DIR",
    "GIT_OBJECT_DIRECTORY",
)
"""Variables that git sets for its hooks. With them, a check that runs in a hook would check the
commit out into the index of the user's working folder."""


def find_repository(folder: Path) -> Path | None:
    """The top folder of the repository that contains the folder; None without one, or without
    git."""
    found = _git(folder, "rev-parse", "--show-toplevel")
    return Path(found).resolve() if found else None


def find_commit(folder: Path, name: str) -> str:
    """The hash of the commit with this name: a hash, a tag, a branch, or a name such as HEAD~1.
    Empty if there is none."""
    return _git(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
    )


@contextmanager
def check_out(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """A worktree of that commit in the folder, until the context ends.

    Raises UsageError if git can't make one. A command that is killed leaves it;
    `remove_left_worktrees` removes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    worktree = folder / WORKTREE
    with FileLock(folder / LOCK):
        try:
            made = _call(
                repository, *NO_HOOKS, "worktree", "add", "--detach", str(worktree), commit
            )
            if made.returncode:
                reason = (made.stderr.strip().splitlines() or ["git has failed"])[-1]
                raise UsageError(f"{commit}: git makes no worktree: {reason}")
            yield worktree
        finally:
            _remove_worktree(repository, folder)


def remove_left_worktrees(repository: Path, parent: Path) -> None:
    """Remove the worktrees below this folder that killed commands have left."""
    for lock in parent.glob(f"*/{LOCK}"):
        # A command that still runs holds the lock, which the kernel releases when a command ends.
        with suppress(Timeout), FileLock(lock, timeout=0):
            _remove_worktree(repository, lock.parent)


def _remove_worktree(repository: Path, folder: Path) -> None:
    # `worktree prune` is not used: it makes git forget all worktrees without a folder, also the
    # user's on a disk that is not mounted now. The second --force removes an unfinished worktree.
    _call(repository, "worktree", "remove", "--force", "--force", str(folder / WORKTREE))
    remove(folder / WORKTREE)
    (folder / LOCK).unlink(missing_ok=True)
    # rmdir fails if there are results, which stay.
    with suppress(OSError):
        folder.rmdir()


def _git(folder: Path, *arguments: str) -> str:
    """The output of git; empty if it fails."""
    try:
        done = _call(folder, *arguments)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip()


def _call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={name: value for name, value in os.environ.items() if name not in OF_HOOKS},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        stdin=subprocess.DEVNULL,
    )
