"""The check command in a user's repository: a recorded base, and what has changed since."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run_fastloop
from known_results import result_of

from fastloop.cli.check import _refuse_settings_of_job, check_speed
from fastloop.config.check_files import CheckSettings, load_base, save_base
from fastloop.core.types import UsageError
from fastloop.reporting.check_verdict import CheckStatus

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
JOB = (
    "dataset._target_=images.Images loader=raw benchmark=traversal epochs=1 min_window_s=0 "
    "isolation=inline {more}"
)
FAST_S, SLOW_S = 0.003, 0.06
SETTINGS = f"job: {JOB.format(more='batch_size=4')}\nfail_above: 300\n"
"""Four times as slow is allowed: a busy machine is no regression, twenty times as slow is."""


def write_dataset(folder: Path, seconds: float = FAST_S, shift: int = 0) -> None:
    """The user's Dataset, with samples that take so long."""
    (folder / "images.py").write_text(DATASET.format(seconds=seconds, shift=shift))


def check(folder: Path, *arguments: str):
    return run_fastloop(*arguments, cwd=folder, command="check")


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A repository with a job, and the base that was recorded for it."""
    folder = tmp_path_factory.mktemp("recorded")
    git(folder, "init", "-q")
    write_dataset(folder)
    (folder / "fastloop.yaml").write_text(SETTINGS)
    (folder / ".gitignore").write_text("__pycache__/\n")
    process = check(folder, "record=true")
    assert process.returncode == 0, process.stdout + process.stderr
    assert "recorded: fastloop-base.json" in process.stdout
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "Record the base")
    return folder


@pytest.fixture
def repository(recorded, tmp_path):
    """A fresh clone of it, as CI makes one."""
    git(tmp_path, "clone", "-q", str(recorded), "clone")
    return tmp_path / "clone"


def changed_files(folder: Path) -> str:
    """What `git status` lists."""
    command = ["git", "status", "--porcelain"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def change_base(repository: Path, change) -> None:
    """Apply the change to every recorded result."""
    path = repository / "fastloop-base.json"
    results = json.loads(path.read_text())
    for result in results:
        change(result)
    path.write_text(json.dumps(results))


@pytest.mark.heavy
def test_base_holds_raw_trials_and_no_path_of_the_machine(recorded):
    text = (recorded / "fastloop-base.json").read_text()
    assert [len(result["trials"]) for result in json.loads(text)] == [5]
    assert str(recorded) not in text


def test_unchanged_loader_passes(repository):
    process = check(repository)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "speed: raw" in process.stdout
    assert "SLOWER" not in process.stdout
    assert not (repository / "outputs" / "mlflow.db").exists()
    assert (repository / "outputs").is_dir()
    assert changed_files(repository) == ""


def test_outputs_folder_that_existed_is_tracked_as_before(repository):
    (repository / "outputs").mkdir()
    assert check(repository).returncode == 0
    assert changed_files(repository) == "?? outputs/\n"


@pytest.mark.heavy
def test_slowed_loader_fails_with_a_line_after_two_measurements(repository):
    write_dataset(repository, SLOW_S)
    process = check(repository)
    assert process.returncode == 1, process.stdout + process.stderr
    assert process.stdout.count("SLOWER; allowed: 4") == 2
    assert "measuring once more" in process.stdout


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda result: result["environment"].update(cpu="Another CPU"), "cpu"),
        (lambda result: result["environment"]["versions"].update(torch="0.1"), "torch"),
    ],
)
def test_other_environment_is_told_before_anything_is_measured(repository, change, key):
    change_base(repository, change)
    process = check(repository)
    assert process.returncode == 2
    assert process.stdout.startswith(f"environment differs: {key} (")
    assert process.stdout.count("\n") == 1
    assert not (repository / "outputs").exists()


def test_other_samples_are_told_and_not_judged(repository):
    write_dataset(repository, shift=1)
    process = check(repository)
    assert process.returncode == 3, process.stdout + process.stderr
    assert "data differs: data content (" in process.stdout
    assert "SLOWER" not in process.stdout


def test_another_host_of_the_same_kind_is_compared(repository):
    change_base(repository, lambda result: result["environment"].update(host="elsewhere"))
    process = check(repository)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "host: elsewhere in the base" in process.stdout


def test_too_few_trials_are_told_with_what_is_known(repository):
    (repository / "fastloop.yaml").write_text(SETTINGS.replace("epochs=1", "epochs=1 trials=3"))
    process = check(repository)
    assert process.returncode == 4
    assert "too few trials to tell it from noise: both need five or more" in process.stdout


def test_relative_to_the_limit(repository):
    with (repository / "fastloop.yaml").open("a") as file:
        file.write("measure: limit_fraction\n")
    process = check(repository)
    assert process.returncode in (0, 4), process.stdout + process.stderr
    known = "relative to the machine's limit", "has no limit; allowed: seconds"
    assert any(line in process.stdout + process.stderr for line in known)


@pytest.mark.parametrize(
    ("settings", "arguments", "line"),
    [
        ("", ("file=none.yaml",), "file=none.yaml: no such file"),
        ("", ("record=maybe",), "record=maybe: allowed: true, false"),
        ("job: dataset=digits\nbase: none.json", (), "base: none.json: no such file"),
        ("job: dataset=digits\nfail_above: much", (), "fail_above=much"),
        (
            "job: dataset=digits\nfail_over: 3",
            (),
            "fail_over=3: there is no such setting; allowed: job, ",
        ),
        ("job: [unclosed", (), "fastloop.yaml: can't be read"),
        ("- a list", (), "fastloop.yaml: allowed: settings"),
        ("job: loader=rawer\n", ("record=true",), "loader=rawer: there is no such option"),
        (
            "job: loader=raw\nbase: fastloop.yaml/base.json",
            ("record=true",),
            "base: fastloop.yaml/base.json: Not a directory; allowed: the path of a file",
        ),
        ("job: loader=raw\nbase: .", ("record=true",), "base: .: Is a directory; allowed: "),
        *[
            ("job: loader=raw\nbase: " + base, ("record=true",), f"base: {base}: it is outside of ")
            for base in ("../x.json", "/tmp/x.json", "a/../../x.json")
        ],
        ("job: loader=raw\nbase: empty.json", (), "base: empty.json: it holds no job; "),
        ('job: ""', ("record=true",), "job: it is empty; allowed: arguments of fastloop run"),
        ("job: []", ("record=true",), "job: it is empty; allowed: arguments of fastloop run"),
        ('job: "loader=\'raw"', (), "job: No closing quotation"),
        ('job: "loader=${oc.env:CI_SECRET}"', (), "interpolations such as ${oc.env:...} are not"),
        ("job: [loader=raw, 'x=${oc.decode:1}']", (), "interpolations such as ${oc.env:...} are"),
        ("job: loader=raw\nbase: ${oc.env:CI_SECRET}", (), "interpolations such as "),
        ("a: &a [*a]", (), "fastloop.yaml: a: allowed: a value, or a list of values"),
        ("job: &a {b: *a}", (), "fastloop.yaml: job: allowed: a value, or a list of values"),
        ("job: " + "[x," * 2000 + "]" * 2000, (), "its lists are nested too deeply"),
        ("job: !!python/object/apply:os.system [ls]", (), "could not determine a constructor"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path, monkeypatch, settings, arguments, line):
    (tmp_path / "fastloop.yaml").write_text(settings)
    (tmp_path / "empty.json").write_text("[]")
    monkeypatch.setenv("CI_SECRET", "hush-hush")
    process = check(tmp_path, *arguments)
    assert process.returncode == 4
    assert line in process.stderr
    assert "hush-hush" not in process.stdout + process.stderr
    assert process.stderr.count("\n") == 1
    assert not (tmp_path / "fastloop-base.json").exists()
    assert not (tmp_path / "outputs").exists(), "it is told before anything is measured"


@pytest.mark.parametrize("base", [[], ["against=HEAD"]])
def test_settings_of_the_job_are_told_their_place(base):
    words = ["dataset=digits", "+dataset.root=my data"]
    with pytest.raises(UsageError, match="inside job=") as error:
        _refuse_settings_of_job(["job=loader=raw", *words, *base])
    advised = shlex.split(str(error.value))[-1]
    assert shlex.split(advised.removeprefix("job=")) == ["loader=raw", *words]
    _refuse_settings_of_job(["job=loader=raw", "seconds=9", "file=a.yaml", "fail_over=2", *base])


@pytest.mark.parametrize("value", ["${oc.env:CI_SECRET}", "a ${oc.env:NOPE,x${oc.env:CI_SECRET}}"])
@pytest.mark.parametrize("setting", ["_target_", "count"])
def test_yaml_file_of_the_job_reads_no_variable(tmp_path, monkeypatch, setting, value):
    """-cd adds the stranger's options; an error of the option would print what it resolved."""
    (tmp_path / "fastloop.yaml").write_text('job: "-cd own dataset=own loader=raw"')
    (tmp_path / "own" / "dataset").mkdir(parents=True)
    lines = {"_target_": "fastloop.options.dataset.digits.Digits", setting: value}
    text = "\n".join(f"{name}: {each}" for name, each in lines.items())
    (tmp_path / "own" / "dataset" / "own.yaml").write_text(text)
    monkeypatch.setenv("CI_SECRET", "hush-hush")
    process = check(tmp_path, "record=true")
    assert process.returncode == 4
    assert f"dataset.{setting}: ${{oc.env:" in process.stderr
    assert "is not resolved in a check" in process.stderr
    assert "hush-hush" not in process.stdout + process.stderr
    assert process.stderr.count("\n") == 1
    assert not (tmp_path / "fastloop-base.json").exists()


@pytest.mark.parametrize("given", [(), ("package=webdataset", "against=0.0.0.1")])
def test_missing_job_is_asked_for_in_both_forms(tmp_path, given):
    process = check(tmp_path, *given)
    assert process.returncode == 4
    assert "fastloop.yaml" in process.stderr
    assert 'job="dataset=digits loader=raw"' in process.stderr
    assert process.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_base_beside_another_folder_of_the_repository_is_accepted(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "fastloop.yaml").write_text("job: loader=raw\nbase: ../bases/x.json")
    process = check(tmp_path, "file=ci/fastloop.yaml")
    assert "base: ci/../bases/x.json: no such file; " in process.stderr


def test_base_is_read_as_it_was_written(recorded, tmp_path):
    base = load_base(recorded / "fastloop-base.json")
    save_base([*base.values()], tmp_path / "base.json")
    assert load_base(tmp_path / "base.json") == base


def test_job_sets_what_a_check_leaves_out():
    assert CheckSettings(job="loader=raw").arguments[-1] == "loader=raw"
    assert "tracker=none" in CheckSettings(job="loader=raw").arguments
    own = CheckSettings(job=["loader=raw", "tracker=mlflow"]).arguments
    assert own == ["report=false", "loader=raw", "tracker=mlflow"]


@pytest.mark.parametrize(
    ("times", "status"), [(1.0, CheckStatus.NOT_JUDGED), (3.0, CheckStatus.SLOWER)]
)
def test_job_of_the_base_that_is_not_measured_is_named_and_keeps_a_check_from_passing(
    times, status
):
    seconds = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0]
    kept, gone, added = (
        replace(result_of(seconds, samples=8, limit=100), name=name, status="FINISHED")
        for name in ("kept", "gone", "added")
    )
    now = replace(result_of([times * each for each in seconds], 8, 100), status="FINISHED")
    new = {"kept": replace(now, name="kept"), "added": added}
    checked = check_speed({"kept": kept, "gone": gone}, new, "seconds", fail_above=10)
    assert checked.status == status
    assert any("gone" in line and "record=true" in line for line in checked.lines)
    # A new job has no base to be slower than.
    expected = CheckStatus.NO_SLOWER if times == 1.0 else CheckStatus.SLOWER
    assert check_speed({"kept": kept}, new, "seconds", fail_above=10).status == expected
