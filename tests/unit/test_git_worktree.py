"""Worktrees of the user's repository: what they leave as it was."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fastloop.core.types import UsageError
from fastloop.processes.git_worktree import check_out, find_commit


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository of two commits, with an empty file more in the second."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    for name in ("first", "second"):
        (folder / name).touch()
        git(folder, "add", name)
        git(folder, "commit", "-q", "-m", name)
    return folder


def check_out_first(repository: Path, folder: Path) -> list[str]:
    with check_out(repository, find_commit(repository, "HEAD~1"), folder) as worktree:
        return sorted(path.name for path in worktree.iterdir() if path.name != ".git")


def test_worktree_of_the_user_on_another_disk_is_not_forgotten(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / "elsewhere"))
    # As if its disk were not mounted.
    shutil.move(tmp_path / "elsewhere", tmp_path / "unmounted")
    assert check_out_first(repository, tmp_path / "check") == ["first"]
    assert not (tmp_path / "check").exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 2
    shutil.move(tmp_path / "unmounted", tmp_path / "elsewhere")
    assert git(tmp_path / "elsewhere", "status", "--short") == ""


def test_check_in_a_hook_leaves_the_index(repository, tmp_path, monkeypatch):
    for name, path in {"GIT_DIR": ".git", "GIT_INDEX_FILE": ".git/index"}.items():
        monkeypatch.setenv(name, str(repository / path))
    assert check_out_first(repository, tmp_path / "check") == ["first"]
    assert git(repository, "status", "--short") == ""


def test_submodules_have_the_files_of_their_commits(repository, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    for text in ("old", "new"):
        (inner / "file").write_text(text)
        git(inner, "add", ".")
        git(inner, "commit", "-q", "-m", text)
    allowed = ("-c", "protocol.file.allow=always")
    git(repository, *allowed, "submodule", "--quiet", "add", str(inner), "a part")
    git(repository / "a part", "checkout", "-q", "HEAD~1")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Add a submodule")
    git(repository / "a part", "checkout", "-q", "-")
    git(repository, "commit", "-q", "-a", "-m", "Update it")
    before = git(repository, "status", "--short"), git(repository / "a part", "status", "--short")
    commit = find_commit(repository, "HEAD~1")
    with check_out(repository, commit, tmp_path / "check") as worktree:
        assert (worktree / "a part" / "file").read_text() == "old"
    assert not (tmp_path / "check").exists()
    after = git(repository, "status", "--short"), git(repository / "a part", "status", "--short")
    assert after == before == ("", "")
    # As if a filter, such as git-lfs, were not installed.
    attributes = repository / ".git" / "modules" / "a part" / "info" / "attributes"
    attributes.write_text("file filter=absent\n")
    for key, value in {"smudge": "no-such-program", "required": "true"}.items():
        git(repository / "a part", "config", f"filter.absent.{key}", value)
    with (
        pytest.raises(UsageError, match=r"submodule a part: fatal: file: smudge filter absent fa"),
        check_out(repository, commit, tmp_path / "check"),
    ):
        pass
    # As if the submodule had never fetched that commit.
    shutil.rmtree(repository / ".git" / "modules" / "a part" / "objects")
    (repository / ".git" / "modules" / "a part" / "objects").mkdir()
    fetch = re.escape(f"git -C '{repository / 'a part'}' fetch origin ")
    with (
        pytest.raises(UsageError, match=rf"submodule a part has no commit (\w+): {fetch}\1 gets"),
        check_out(repository, commit, tmp_path / "check"),
    ):
        pass
    assert not (tmp_path / "check").exists()
