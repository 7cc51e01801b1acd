"""`fastloop tune` on a dataset whose samples sleep: killed in its race, resumed, and looked at."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import fork_server
import pytest
from commands import results, run_fastloop, runs
from options import SUPPORT

from fastloop.core.load_text import load_text
from fastloop.core.machine_load import summarize_loads
from fastloop.core.result_io import load
from fastloop.core.types import UsageError
from fastloop.tune.tune_file import TUNE_FILE, TuneFile, find_tuning

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

JOB = (
    "dataset._target_=slow_stages.Samples",
    "+dataset.sleep_s=0.004",
    "loader=raw",
    "batch_size=16",
    "benchmark=traversal",
    "torch_threads=1",
    "min_window_s=0",
    "isolation=inline",  # starts no process per trial
)
TUNE = (*JOB, "space=loader=raw,preload,index_loop device_prefetch=0,2", "budget=30trials")


def trials(cwd: Path) -> dict[str, list[int]]:
    """Start times of the finished trials, by configuration."""
    return {each.name: [trial.started_ms for trial in each.trials] for each in results(cwd)}


@pytest.fixture(scope="module")
def tuning(tmp_path_factory, empty_database):
    """(folder of the command, start times at the kill, the finished process)."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "outputs").mkdir()
    shutil.copy(empty_database, folder / "outputs")
    shutil.copy(SUPPORT / "slow_stages.py", folder)
    command = fork_server.start("fastloop", ("tune", *TUNE), folder, dict(os.environ))
    command.wait_until(lambda: sum(map(len, trials(folder).values())) >= 8)
    command.process.send_signal(signal.SIGKILL)
    command.wait()
    before = trials(folder)
    process = run_fastloop(*TUNE, "resume=last", cwd=folder, command="tune")
    assert process.returncode == 0, process.stderr
    return folder, before, process


def only_sweep(cwd: Path) -> Path:
    (sweep,) = [path for path in cwd.glob("outputs/20*/*") if (path / "tune.json").exists()]
    return sweep


def test_resuming_repeats_no_trial(tuning):
    folder, before, _ = tuning
    after = trials(folder)
    assert all(after[name][: len(old)] == old for name, old in before.items())
    assert {result.status for result in results(folder)} == {"FINISHED"}
    numbers = [[trial.number for trial in result.trials] for result in results(folder)]
    assert all(len({*each}) == len(each) for each in numbers)


def test_gain_is_told_with_its_interval_and_the_rest_is_said(tuning):
    folder, _, process = tuning
    verdict = " ".join(process.stdout.split())
    loads = [trial.load for result in results(folder) for trial in result.trials]
    summary = summarize_loads(loads)
    assert summary is not None
    assert verdict.startswith(load_text(summary))
    found = re.search(
        r"loader=\w+.*: ([\d.]+) \[([\d.]+), ([\d.]+)\] times as fast as yours", verdict
    )
    assert found, process.stdout
    gain, low, high = map(float, found.groups())
    assert 1.02 < low <= gain <= high
    assert re.search(rf"{len(results(folder))} of 6 configurations ran", verdict)


def test_present_configuration_runs_in_every_round(tuning):
    folder, _, _ = tuning
    present, *others = results(folder)
    numbers = {trial.number for trial in present.trials}
    assert all({trial.number for trial in other.trials} <= numbers for other in others)
    assert present.shadow is not None
    assert present.attribution


def test_tracker_has_the_race_as_one_sweep(tuning):
    folder, _, _ = tuning
    logged = runs(folder)
    assert 2 < len(logged) == len(results(folder)) <= 6  # what has not run leaves nothing
    assert len({run.data.tags["sweep"] for run in logged}) == 1


def test_what_was_found_is_a_yaml_that_runs(tuning):
    folder, _, process = tuning
    sweep = only_sweep(folder)
    plan = json.loads((sweep / "tune.json").read_text())
    assert plan["combinations"] == 5
    quick = ("trials=1", "epochs=1", "tracker=none", "report=false")
    run = run_fastloop("-cd", str(sweep), "experiment=tuned", *quick, cwd=folder)
    assert run.returncode == 0, run.stderr
    newest = sorted(folder.glob("outputs/20*/*/0/result.json"))[-1]
    name = load(newest.parent).loader
    assert name in ("preload", "index_loop")
    assert f"loader={name}" in process.stdout


def test_folder_of_another_command_is_not_resumed(tuning):
    folder, _, _ = tuning
    process = run_fastloop(*TUNE, "seed=1", "resume=last", cwd=folder, command="tune")
    assert process.returncode == 1
    assert "resume=last: it belongs to another command" in process.stderr
    assert process.stderr.count("\n") == 1


def test_tune_of_several_jobs_is_refused_by_its_own_name(tmp_path):
    process = run_fastloop("-m", "loader=raw,preload", cwd=tmp_path, command="tune")
    assert process.returncode == 1
    assert process.stderr.startswith("tune takes one job")
    assert process.stderr.count("\n") == 1
    assert "loader=raw,preload" in process.stderr


@pytest.mark.heavy
def test_last_tuning_starts_again_if_none_has_finished_a_trial(tmp_path):
    shutil.copy(SUPPORT / "slow_stages.py", tmp_path)
    quick = [each for each in TUNE if not each.startswith(("space=", "budget="))]
    quick += ["space=loader=raw", "budget=2trials", "resume=last"]
    process = run_fastloop(*quick, "tracker=none", cwd=tmp_path, command="tune")
    assert process.returncode == 0, process.stderr
    assert "resume=last: no earlier tuning has finished a trial; this one starts again\n" in (
        process.stderr
    )


def test_trials_that_are_measured_again_are_paid_for_again(tmp_path):
    code = Path(shutil.copy(SUPPORT / "slow_stages.py", tmp_path))
    quick = [each for each in TUNE if not each.startswith(("space=", "budget="))]
    quick += ["space=loader=raw,preload", "budget=4trials", "tracker=none"]
    process = run_fastloop(*quick, cwd=tmp_path, command="tune")
    assert process.returncode == 0, process.stderr
    before = json.loads((only_sweep(tmp_path) / TUNE_FILE).read_text())["spent_s"]
    # Other data: no earlier trial counts.
    text = code.read_text()
    code.write_text(text.replace("float(index))", "float(index + 1))"))
    assert code.read_text() != text
    process = run_fastloop(*quick, "resume=last", cwd=tmp_path, command="tune")
    assert process.returncode == 0, process.stderr
    after = json.loads((only_sweep(tmp_path) / TUNE_FILE).read_text())["spent_s"]
    for name, rounds in before.items():
        assert all(after[name][number] != spent_s for number, spent_s in rounds.items())


def a_file() -> TuneFile:
    return TuneFile(
        command="x",
        jobs=[["a=1"]],
        changes=[[]],
        left_out={},
        forecast_mib=[None],
        predicted=[1.0],
        trial_s=1.0,
        notes=[],
        combinations=0,
        exhaustive=0,
    )


def test_trials_after_one_that_is_measured_again_move_with_it():
    file = a_file()
    for name, number, seconds in (("a", 0, 10.0), ("b", 0, 14.0), ("a", 1, 17.0)):
        file.note_spent(name, number, seconds)
    file.note_spent("b", 0, 21.0)
    assert file.spent_s == {"a": {0: 10.0, 1: 24.0}, "b": {0: 21.0}}
    file.note_spent("a", 0, 8.0)
    assert file.spent_s == {"a": {0: 8.0, 1: 22.0}, "b": {0: 19.0}}


@pytest.mark.parametrize("damage", ["empty", "truncated", "other types", "lengths", "foreign"])
def test_damaged_tune_file_is_named(damage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / TUNE_FILE
    file = a_file()
    file.save(tmp_path)
    assert find_tuning(".", "x") == (tmp_path, file)
    text = path.read_text()
    damaged = {
        "empty": b"",
        "truncated": text.encode()[:50],
        "other types": text.replace('"x"', "[3]").encode(),
        "lengths": text.replace('"changes": [', '"changes": [["b=2"],').encode(),
        "foreign": b"\xff\xfe{}",
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(UsageError, match=rf"^resume=\.: {path}: can't be read: .*; allowed: "):
        find_tuning(".", "x")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("budget=abc", "budget=abc: allowed: a time such as 300s"),
        ("budget=5s", "budget=5s is too short: comparing yours with one other takes at least"),
        ("objective=nope", "objective=nope: allowed: epoch"),
        ("space=num_wrkers=1", "space: num_wrkers=1: no such setting"),
        (
            "space=num_workers=range(0,1000000000)",
            "these are 1,000,000,000 values; allowed: at most",
        ),
        (
            "space=batch_size=range(1,1000) torch_threads=range(1,1000)",
            "space: these values make 998,001 candidates; allowed: at most 100,000",
        ),
        ("space=", "space=: it is empty; allowed: name=a,b,c"),
        ("budget=\u0665min", "budget=\u0665min: allowed: a time such as 300s"),
        ("memory_limit_mib=0", "memory_limit_mib=0: allowed"),
        ("num_wrkers=1", "num_wrkers=1: there is no such setting"),
    ],
)
def test_wrong_input_is_one_line(argument, message, tmp_path):
    process = run_fastloop("dataset=digits", "loader=raw", argument, cwd=tmp_path, command="tune")
    assert process.returncode == 1
    assert message in process.stderr
    assert process.stderr.strip().count("\n") == 0
    assert not (tmp_path / "outputs").exists()


@pytest.mark.heavy
@pytest.mark.nightly
def test_budget_that_ends_before_a_gain_is_confirmed_is_used_and_not_refused(tmp_path):
    shutil.copy(SUPPORT / "slow_stages.py", tmp_path)
    job = [each.replace("=0.004", "=0.04") for each in JOB]  # four batches take 2.6 s
    given = *job, "space=loader=raw,preload", "tracker=none", "budget=35s"
    process = run_fastloop(*given, cwd=tmp_path, command="tune")
    assert process.returncode == 0, process.stderr
    told = " ".join(process.stdout.split())
    assert re.search(r"No answer yet: .* Nothing is lost: budget=\d+s and resume=last go on", told)


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the PSS is Linux's")
def test_limit_of_memory_leaves_out_what_needs_more_and_says_so(tmp_path):
    given = (
        "dataset=synthetic",
        "dataset.count=256",
        "dataset.shape=[512,1024]",
        "batch_size=4",
        "loader=raw",
        "benchmark=traversal",
        "min_window_s=0",
        "tracker=none",
        "space=loader=raw,preload torch_threads=null,1",
        "budget=4trials",
    )
    rows_mib = 256 * 512 / 1024
    refused = run_fastloop(*given, "memory_limit_mib=1", cwd=tmp_path, command="tune")
    least = re.search(r"memory_limit_mib=1: .* allowed: from (\d+)\n$", refused.stderr)
    assert least, refused.stderr
    # The PSS counts a page of torch's libraries less while other processes have mapped it: peaks
    # of the same run were 60 MiB apart. What preload adds, the rows, must be well above that.
    limit = f"memory_limit_mib={int(least.group(1)) + 0.7 * rows_mib:.0f}"
    process = run_fastloop(*given, limit, cwd=tmp_path, command="tune")
    assert process.returncode == 0, process.stderr
    reason = "left out: 2 x num_workers=0: forecast peak of memory above the limit"
    assert reason in " ".join(process.stdout.split())


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("objective", ["first_batch", "exposed_wait"])
def test_other_objectives_choose_by_passes(objective, tmp_path):
    shutil.copy(SUPPORT / "slow_stages.py", tmp_path)
    given = *JOB, f"objective={objective}", "space=loader=raw,preload", "tracker=none"
    process = run_fastloop(*given, "budget=20trials", cwd=tmp_path, command="tune")
    assert process.returncode == 0, process.stderr
    verdict = " ".join(process.stdout.split())
    assert f"objective {objective}: 2 of 2 configurations ran" in verdict
    assert re.search(r"loader=preload: [\d.]+ \[[\d.]+, [\d.]+\] times as fast as yours", verdict)
    plan = json.loads((only_sweep(tmp_path) / "tune.json").read_text())
    assert len(plan["costs"]["yours"]) > 3
