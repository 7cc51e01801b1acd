"""Check out a commit of the user's git repository in a folder of its own (a git worktree), and
remove the folder afterwards."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from fastloop.core.atomic_files import remove
from fastloop.core.text import first_line
from fastloop.core.types import UsageError

WORKTREE, LOCK, INDEX = "worktree", ".worktree.lock", ".submodule.index"
"""Names of the folder with a commit's files, of the lock beside it, and of the temporary index with
which git reads a submodule. The command that uses the folder holds the lock."""
SUBMODULE_MODE = "160000"
"""git's mode of a submodule in a tree."""
NO_HOOKS = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
"""Settings of git with which none of the user's hooks runs, such as one that installs packages."""
HOOK_VARIABLES = (
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
    """Find the top folder of the repository that contains the folder; None without one, or without
    git."""
    found = _git(folder, "rev-parse", "--show-toplevel")
    return Path(found).resolve() if found else None


def explain_no_repository(folder: Path) -> str:
    """git's reason for rejecting the repository around the folder, such as that it belongs to
    another user; empty if git accepts the repository, or finds none."""
    try:
        done = _call(folder, "rev-parse", "--show-toplevel", variables={"LC_ALL": "C"})
    except OSError:
        return "git is not installed"
    reason = first_line(done.stderr).removeprefix("fatal: ")
    return "" if not done.returncode or reason.startswith("not a git repository") else reason


def find_commit(folder: Path, name: str) -> str:
    """Find the hash of the commit with this name: a hash, a tag, a branch, or a name such as
    HEAD~1. Empty if there is none."""
    return _git(
        folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"
    )


@contextmanager
def check_out(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Check the commit out as a worktree in the folder, until the context ends.

    Raises UsageError if git can't make a worktree. A command that is killed leaves its worktree
    behind; `remove_left_worktrees` removes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    worktree = folder / WORKTREE
    with FileLock(folder / LOCK):
        try:
            made = _call(
                repository, *NO_HOOKS, "worktree", "add", "--detach", str(worktree), commit
            )
            if made.returncode:
                raise UsageError(f"{commit}: git makes no worktree: {_last_line(made)}")
            _fill_submodules(repository, commit, worktree, folder / INDEX)
            yield worktree
        finally:
            _remove_worktree(repository, folder)


def _fill_submodules(repository: Path, commit: str, tree: Path, index: Path) -> None:
    """Write the files of the commit's submodules to their folders in `tree`: git leaves them empty.

    The files come from the submodules' repositories in the user's working folder. index: path of
    git's temporary index, which is removed. Raises UsageError if such a repository lacks the
    commit, or if git fails.
    """
    listed = _git(repository, "ls-tree", "-r", "-z", commit).split("\0")
    for entry in listed:
        kind, _, name = entry.partition("\t")
        source = repository / name
        # A submodule that the working folder lacks is left out of every version.
        if not kind.startswith(SUBMODULE_MODE) or not (source / ".git").exists():
            continue
        of_commit = kind.split()[2]
        target = tree / name
        variables = {"GIT_INDEX_FILE": str(index)}
        # git reads the commit into the temporary index, and the submodule's own is not changed.
        for command in (["read-tree", of_commit], ["checkout-index", "-a", f"--prefix={target}/"]):
            done = _call(source, *NO_HOOKS, *command, variables=variables)
            if done.returncode:
                raise UsageError(f"{commit}: submodule {name}{_fault(done, source, of_commit)}")
        index.unlink()
        _fill_submodules(source, of_commit, target, index)


def _fault(done: subprocess.CompletedProcess[str], source: Path, commit: str) -> str:
    """The reason why git could not write this commit of the repository in `source`."""
    if find_commit(source, commit):
        return f": {_last_line(done)}"
    # A shallow repository can fetch the commit only by name.
    remedy = f"git -C {shlex.quote(str(source))} fetch origin {commit}"
    return f" has no commit {commit}: {remedy} gets it"


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or ["git has failed"])[-1]


def remove_left_worktrees(repository: Path, parent: Path) -> None:
    """Remove the worktrees below this folder that killed commands have left."""
    for lock in parent.glob(f"*/{LOCK}"):
        # A command that still runs holds the lock, which the kernel releases when a command ends.
        with suppress(Timeout), FileLock(lock, timeout=0):
            _remove_worktree(repository, lock.parent)


def _remove_worktree(repository: Path, folder: Path) -> None:
    """Remove a worktree with its lock and index, and its folder if that is then empty."""
    # `worktree prune` is not used: it makes git forget all worktrees without a folder, also the
    # user's on a disk that is not mounted now. The second --force removes an unfinished worktree.
    _call(repository, "worktree", "remove", "--force", "--force", str(folder / WORKTREE))
    remove(folder / WORKTREE)
    (folder / INDEX).unlink(missing_ok=True)
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


def _call(
    folder: Path, *arguments: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run git in the folder, without the variables that git sets for its hooks."""
    own = {name: value for name, value in os.environ.items() if name not in HOOK_VARIABLES}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env=own | dict(variables or {}),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        stdin=subprocess.DEVNULL,
    )
