"""fastloop check against=: two versions in real repositories, folders and wheels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import module_and_arguments, run_fastloop
from fork_server import start
from tiny_wheels import write_wheel

from fastloop.core.result_io import load_results

pytestmark = pytest.mark.slow
DATASET = """\
import time

import torch


class Images:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep({seconds})
        return torch.full((2, 2), float(index) + {shift}), index
"""
FILE = """\
job: >-
  dataset._target_=images.Images loader=raw benchmark=traversal epochs=1 min_window_s=0
  isolation=inline batch_size=4
fail_above: 100
"""
"""Twice as slow is allowed: a busy machine is no regression, ten times as slow is."""
FAST_S, SLOW_S = 0.002, 0.02


def write_dataset(folder: Path, seconds: float = FAST_S, shift: int = 0) -> None:
    (folder / "images.py").write_text(DATASET.format(seconds=seconds, shift=shift))


def check(folder: Path, *arguments: str):
    return run_fastloop(*arguments, "seconds=60", cwd=folder, command="check")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    command = ["git", *identity, *arguments]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def worktrees(folder: Path) -> int:
    return len(git(folder, "worktree", "list").splitlines())


@pytest.fixture
def repository(tmp_path):
    """A repository with a job and one commit."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    write_dataset(folder)
    (folder / "fastloop.yaml").write_text(FILE)
    (folder / ".gitignore").write_text("outputs/\n__pycache__/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Fast")
    git(folder, "tag", "first")
    return folder


@pytest.mark.heavy
def test_slower_working_folder_is_found_and_leaves_no_worktree(repository):
    write_dataset(repository, SLOW_S)
    process = check(repository, "against=HEAD", "markdown=comment.md")
    assert process.returncode == 1, process.stdout + process.stderr
    assert process.stdout.startswith("The working folder is slower than HEAD (")
    assert worktrees(repository) == 1
    (folder,) = (repository / "outputs/check").iterdir()
    assert {each.name for each in folder.iterdir()} == {"base", "new"}
    base, new = (load_results(folder / side, "side") for side in ("base", "new"))
    assert base[0].content == new[0].content != ""
    assert base[0].fingerprint != new[0].fingerprint
    # One clock is read by both: trial after trial, each version has its turn.
    trials = [trial for result in (*base, *new) for trial in result.trials]
    turns = sorted(trials, key=lambda trial: trial.benchmarks["traversal"].start_ns)
    assert [trial.number for trial in turns] == [n for n in range(len(trials) // 2) for _ in "12"]
    assert "is slower than" in (repository / "comment.md").read_text()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("commit", "said"),
    [
        ("first", "is no slower than first ("),
        pytest.param("HEAD", "", marks=pytest.mark.nightly),
    ],
)
def test_working_folder_passes_against_a_commit_that_is_no_faster(repository, commit, said):
    write_dataset(repository, SLOW_S)
    git(repository, "commit", "-q", "-a", "-m", "Slow")
    write_dataset(repository)
    process = check(repository, f"against={commit}")
    assert process.returncode == 0, process.stdout + process.stderr
    assert said in process.stdout


@pytest.mark.heavy
def test_other_samples_are_told_and_not_judged(repository):
    write_dataset(repository, SLOW_S, shift=1)
    process = check(repository, "against=HEAD")
    assert process.returncode == 3, process.stdout + process.stderr
    assert "delivers different samples in the working folder" in process.stdout
    assert "SLOWER" not in process.stdout


@pytest.mark.heavy
def test_commit_that_fails_to_import_is_one_line(repository):
    images = repository / "images.py"
    images.write_text("import no_such_module\n" + images.read_text())
    git(repository, "commit", "-q", "-a", "-m", "Break it")
    write_dataset(repository)
    process = check(repository, "against=HEAD")
    assert process.returncode == 4
    assert process.stdout == ""
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("HEAD (")
    assert "ModuleNotFoundError: No module named 'no_such_module'" in last
    assert "Traceback" not in process.stderr
    assert worktrees(repository) == 1
    assert not (repository / "outputs" / "check").exists()


@pytest.mark.heavy
@pytest.mark.nightly
def test_folder_takes_the_place_of_the_working_folder(repository, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_dataset(other, SLOW_S)
    process = check(repository, f"against={other}", "fail_above=50")
    assert process.returncode == 0, process.stdout + process.stderr
    assert f"is no slower than {other}" in process.stdout


@pytest.mark.heavy
def test_module_of_the_other_version_is_refused(repository):
    # As an import hook of an editable installation does.
    (repository / "elsewhere").mkdir()
    write_dataset(repository / "elsewhere")
    (repository / "images.py").write_text(
        f"import sys\nsys.path.insert(0, {str(repository / 'elsewhere')!r})\n"
        "del sys.modules['images']\nfrom images import Images\n"
    )
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Import from a fixed folder")
    process = check(repository, "against=HEAD")
    assert process.returncode == 4
    assert "images is imported from" in process.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("against=nothing",), "against=nothing: no such commit, file or folder; allowed:"),
        (("against=--help",), "against=--help: no such commit"),
        (("against=1.2",), "against=1.2: no such commit, file or folder; allowed: "),
        (("against=a.whl",), "against=a.whl: no such file"),
        (("against=first", "package=-x"), "package=-x: allowed: the name of"),
        (("against=1.0", "package=no-such-package"), "package=no-such-package: it is not inst"),
        (("against=first", "record=true"), "record=true with against="),
        (("against=first", "markdown=no/such/file"), "markdown=no/such/file: allowed:"),
        (("against=first", "fail_above=much"), "fail_above=much: allowed:"),
        (("seconds=5",), "seconds=5: allowed: with against="),
        (("against=",), "against=: it is empty; allowed: a value, or no against="),
        (("against=first", "job= "), "job= : it is empty; allowed: "),
        (("against=first", "markdown=/proc/comment.md"), "markdown=/proc/comment.md: "),
        (("against=1.0", "package=torch", "job=loader=no"), "loader=no: "),
    ],
)
def test_wrong_values_are_one_line(repository, arguments, line):
    process = run_fastloop(*arguments, cwd=repository, command="check")
    assert process.returncode == 4
    assert process.stderr.startswith(line)
    assert process.stderr.count("\n") == 1
    assert not (repository / "outputs").exists()


@pytest.mark.heavy
def test_number_that_does_not_exist_is_one_line_before_anything_is_measured(repository):
    given = ("package=iniconfig", "against=999.0")
    process = run_fastloop(*given, cwd=repository, command="check", PIP_NO_INDEX="1")
    assert (process.returncode, process.stdout) == (4, "")
    assert process.stderr.count("\n") == 1
    assert process.stderr.startswith("against=999.0: no environment: ")
    assert "iniconfig==999.0" in process.stderr
    assert not [*(repository / "outputs").glob("*/*")]


@pytest.mark.heavy
@pytest.mark.nightly
def test_wheel_is_measured_in_an_environment_against_the_package_that_is_here(repository):
    # The candidate is a package that pytest needs, and the wheel another version of it.
    wheel = write_wheel(repository, "0.0.1", "iniconfig")
    (repository / "images.py").write_text(
        DATASET.format(seconds="SECONDS", shift=0)
        + "\n\nimport iniconfig\n\nSECONDS = 0.002 if hasattr(iniconfig, 'VERSION') else 0.02\n"
    )
    process = check(repository, f"against={wheel.name}")
    assert process.returncode == 1, process.stdout + process.stderr
    assert "is slower than iniconfig-0.0.1-py3-none-any.whl: " in process.stdout
    assert [*(repository / "outputs/environments").glob("*/environment.json")]


PINNED = """\
_target_: pinned.make_loader
requirements: ["pins_demo>=1"]
"""
LOADER = """\
import time

from torch.utils.data import DataLoader


class Slow:
    def __init__(self, dataset, seconds):
        self.dataset, self.seconds = dataset, seconds

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.dataset[index]


def make_loader(dataset, sampler, batch_size):
    import pins_demo

    slow = Slow(dataset, 0.02 if pins_demo.VERSION == "2.0" else 0.002)
    return DataLoader(slow, batch_size, sampler=sampler)
"""


@pytest.mark.heavy
def test_library_that_only_an_environment_has_is_measured_in_two_of_them(repository):
    (repository / "my_conf" / "loader").mkdir(parents=True)
    (repository / "my_conf" / "loader" / "pinned.yaml").write_text(PINNED)
    (repository / "pinned.py").write_text(LOADER)
    write_dataset(repository, 0)
    for version in ("1.0", "2.0"):
        write_wheel(repository / "wheels", version)
    job = FILE.partition(">-")[2].partition("fail_above")[0].replace("loader=raw", "loader=pinned")
    given = ("package=pins-demo", "against=1.0", f"job=-cd my_conf {' '.join(job.split())}")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(repository / "wheels")}
    process = run_fastloop(*given, "seconds=60", cwd=repository, command="check", **index)
    assert process.returncode == 1, process.stdout + process.stderr
    assert process.stdout.startswith("pins-demo 2.0 is slower than pins-demo 1.0: ")
    # The environment of the loader is the one that a run uses.
    listed = run_fastloop("-cd", "my_conf", "loader=pinned", cwd=repository, command="env")
    assert "exists: " in listed.stdout
    assert len([*(repository / "outputs" / "environments").iterdir()]) == 2


@pytest.mark.heavy
def test_missing_environment_is_told_once(repository):
    (repository / "my_conf" / "loader").mkdir(parents=True)
    (repository / "my_conf" / "loader" / "pinned.yaml").write_text(PINNED)
    (repository / "pinned.py").write_text(LOADER)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "Read by a library")
    job = "job=-cd my_conf dataset=digits loader=pinned benchmark=traversal epochs=1"
    process = check(repository, "against=HEAD", job)
    assert (process.returncode, process.stdout) == (4, "")
    assert process.stderr.count("pins_demo>=1") == 1
    assert "fastloop env" in process.stderr.strip().splitlines()[-1]
    assert not (repository / "outputs" / "check").exists()


@pytest.mark.heavy
def test_package_that_hides_the_version_of_the_environment_is_refused(repository, monkeypatch):
    wheel = write_wheel(repository, "0.0.1", "iniconfig")
    # As a folder of `pip install --target` on PYTHONPATH.
    info = repository / "hiding" / "iniconfig-0.0.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: iniconfig\nVersion: 0.0.2\n")
    process = run_fastloop(
        f"against={wheel.name}", cwd=repository, command="check", PYTHONPATH=str(info.parent)
    )
    assert (process.returncode, process.stdout) == (4, "")
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("iniconfig-0.0.1-py3-none-any.whl: iniconfig 0.0.2 is imported: PYTHON")


def _start_check(repository: Path):
    write_dataset(repository, 0.05)
    module, arguments = module_and_arguments("check", ("against=HEAD",))
    command = start(module, arguments, repository, dict(os.environ))
    command.wait_until(lambda: [*repository.glob("outputs/check/*/base/0/result.json")])
    return command, command.process.children(recursive=True)


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="only there the kernel ends children")
def test_killed_command_leaves_no_process_and_the_next_one_removes_its_worktree(repository):
    command, children = _start_check(repository)
    command.process.send_signal(signal.SIGKILL)
    command.wait()
    for child in children:
        child.wait(30)
    assert worktrees(repository) == 2
    write_dataset(repository, SLOW_S)
    check(repository, "against=HEAD")
    assert worktrees(repository) == 1
    assert not [*repository.glob("outputs/check/*/worktree")]


@pytest.mark.heavy
def test_interrupted_command_leaves_nothing_behind(repository):
    command, children = _start_check(repository)
    command.process.send_signal(signal.SIGINT)
    done = command.wait()
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert worktrees(repository) == 1
    assert not any(child.is_running() and child.status() != "zombie" for child in children)
