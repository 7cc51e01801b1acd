"""What `against=` and `package=` name: known answers, and one line for what can't be found."""

from __future__ import annotations

import subprocess

import pytest

from fastloop.core.types import UsageError
from fastloop.sweep.open_versions import pin
from fastloop.sweep.version_source import VersionSource, find_source, with_requirements


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        ((), ("two==1.0",)),
        (("one>=3",), ("one>=3", "two==1.0")),
        (("one", "two>=2; python_version > '3'", "three"), ("one", "two==1.0", "three")),
        (("two[rows,cloud]<4",), ("two[cloud,rows]==1.0",)),
        (("--no-deps Two",), ("--no-deps two==1.0",)),
        (("--find-links 'my wheels' two>=1",), ("--find-links 'my wheels' two==1.0",)),
        (("./two",), ("./two", "two==1.0")),
    ],
)
def test_a_version_takes_the_place_of_the_packages_own_requirement(requirements, expected):
    assert pin(requirements, "two", "1.0") == expected


def test_a_package_that_only_the_jobs_environment_has_is_found(outputs):
    source = VersionSource(kind="version", against="1.0", package="Absent.Package")
    found = with_requirements(source, ["absent-package>=2"])
    assert found.environment is not None
    assert found.environment.requirements == ("absent-package>=2",)


@pytest.mark.parametrize(
    ("requirements", "told"),
    [
        ([], "package=no-such-package: it is not installed; allowed: "),
        (["absent"], "package=no-such-package: it is not installed, and the job requires absent;"),
    ],
)
def test_a_package_that_neither_has_is_refused_before_anything_is_built(
    outputs, requirements, told
):
    source = VersionSource(kind="version", against="1.0", package="no-such-package")
    with pytest.raises(UsageError, match=told):
        with_requirements(source, requirements)
    assert not outputs.exists()


@pytest.mark.parametrize("against", ["~no-such-user/mine", "x" * 5000, "müller", "\udcff"])
def test_a_strange_name_is_refused_in_one_line(tmp_path, against):
    with pytest.raises(UsageError, match="no such commit, file or folder; allowed: ") as error:
        find_source(against, "", tmp_path)
    assert "\n" not in str(error.value)


def test_a_number_is_a_version_of_fastloop_only_in_a_checkout_of_it(tmp_path):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    with pytest.raises(
        UsageError, match=r"against=1\.2: no such commit, .*package=fastloop against"
    ):
        find_source("1.2", "", tmp_path)
    assert find_source("1.2", "fastloop", tmp_path).package == "fastloop"
    (tmp_path / "fastloop" / "fastloader" / "native").mkdir(parents=True)
    source = find_source("1.2", "", tmp_path)
    assert (source.kind, source.package) == ("version", "fastloop")


def test_a_number_outside_of_any_repository_is_refused(tmp_path):
    with pytest.raises(
        UsageError, match=r"against=1\.2: no such commit, file or folder; allowed: "
    ):
        find_source("1.2", "", tmp_path)


def test_a_repository_that_git_does_not_read_is_told(tmp_path, monkeypatch):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    # git's own tests set this: the repository belongs to somebody else, as in a container of CI.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(UsageError, match="no commit was looked for: detected dubious ownership"):
        find_source("HEAD", "", tmp_path)


def test_a_commit_of_a_repository_without_a_working_folder_is_refused(tmp_path):
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "First"]):
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    assert find_source("HEAD", "", tmp_path).kind == "commit"
    with pytest.raises(UsageError, match="must be run in a work tree"):
        find_source("HEAD", "", tmp_path / ".git")
