"""resume: an interrupted sweep continues where it stopped."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import time

import psutil
import pytest
from commands import (
    QUICK,
    results,
    run_fastloop,
    run_until_killed,
    runs,
    start_fastloop,
    trial_starts,
)
from filelock import FileLock
from options import MYDATASET

from fastloop.core.outputs_folder import CLAIM
from fastloop.core.result_io import load, save

pytestmark = pytest.mark.slow
SWEEP = ("-m", "loader=raw,np_memmap", *QUICK, "tracker=mlflow", "trials=4", "isolation=inline")
IN_PROCESSES = (*SWEEP, "isolation=forkserver")


@pytest.fixture(scope="module")
def resumed_sweep(tmp_path_factory, empty_database):
    """A sweep killed after three trials and resumed: (folder, starts before, finished process)."""
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "outputs").mkdir()
    shutil.copy(empty_database, folder / "outputs")
    run_until_killed(SWEEP, 3, folder)
    before = trial_starts(folder)
    process = run_fastloop(*SWEEP, "resume=last", cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder, before, process


def test_resume_runs_only_the_unfinished_trials(resumed_sweep):
    folder, before, _ = resumed_sweep
    after = trial_starts(folder)
    assert [len(starts) for starts in after] == [4, 4]
    assert all(old == new[: len(old)] for old, new in zip(before, after, strict=True))
    assert {result.status for result in results(folder)} == {"FINISHED"}
    assert all(
        {trial.number for trial in result.trials} == {0, 1, 2, 3} for result in results(folder)
    )


def test_each_finished_round_is_reported_where_there_is_no_terminal(resumed_sweep):
    *_, process = resumed_sweep
    plan, *lines = process.stderr.splitlines()
    assert plan.startswith("2 jobs x 4 trials")
    assert lines, process.stdout
    numbers = [
        re.fullmatch(r"round (\d) of 4: [\d:]+ elapsed, about [\d:]+ left", x) for x in lines
    ]
    assert [match and match.group(1) for match in numbers] == list("1234")[-len(lines) :]


def test_resumed_sweep_keeps_its_folder_and_one_run_per_job(resumed_sweep):
    folder, _, process = resumed_sweep
    (sweep,) = folder.glob("outputs/20*/*")
    assert sorted(run.info.run_name for run in runs(folder)) == [
        "np_memmap mydataset",
        "raw mydataset",
    ]
    assert {run.info.status for run in runs(folder)} == {"FINISHED"}
    assert {run.data.tags["sweep"] for run in runs(folder)} == {"/".join(sweep.parts[-2:])}
    assert "trials 4" in process.stdout
    assert str(sweep) in process.stdout


def test_resume_of_a_finished_sweep_only_reports(resumed_sweep):
    folder, _, _ = resumed_sweep
    before, ids = trial_starts(folder), {run.info.run_id for run in runs(folder)}
    (sweep,) = folder.glob("outputs/20*/*")
    process = run_fastloop(*SWEEP, "trials=2", f"resume={sweep}", cwd=folder)
    assert process.returncode == 0, process.stderr
    for name in ("raw", "np_memmap"):
        kept = f"{name} mydataset keeps its {len(before[0])} trials, more than trials=2 asks for"
        assert kept in process.stderr
    assert trial_starts(folder) == before
    assert {run.info.run_id for run in runs(folder)} == ids
    assert "np_memmap" in process.stdout


def test_resume_with_more_trials_adds_the_missing_ones(resumed_sweep):
    folder, _, _ = resumed_sweep
    before = trial_starts(folder)
    process = run_fastloop(*SWEEP, "trials=5", "resume=last", cwd=folder)
    assert process.returncode == 0, process.stderr
    assert [starts[:4] for starts in trial_starts(folder)] == before
    assert [len(starts) for starts in trial_starts(folder)] == [5, 5]
    assert len(runs(folder)) == 2


@pytest.mark.heavy
def test_resume_never_mixes_results_of_other_versions(tmp_path):
    run_fastloop(*SWEEP, "tracker=none", "trials=2", cwd=tmp_path)
    for path in tmp_path.glob("outputs/20*/*/*/result.json"):
        result = load(path.parent)
        versions = result.environment["versions"] | {"torch": "1.0"}
        environment = result.environment | {"versions": versions}
        save(dataclasses.replace(result, environment=environment, key="another"), path.parent)
    process = run_fastloop(*SWEEP, "tracker=none", "trials=3", "resume=last", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "raw mydataset is measured again, torch 1.0 to " in process.stderr
    assert [len(result.trials) for result in results(tmp_path)] == [3, 3]
    kept = [*tmp_path.glob("outputs/20*/*/*/result-another.json")]
    assert len(kept) == 2


@pytest.mark.heavy
@pytest.mark.parametrize("retry", ["true", "false"])
def test_resume_retries_failed_jobs_unless_disabled(tmp_path, retry):
    run_fastloop(*IN_PROCESSES, "tracker=none", "trials=2", "trial_timeout_s=0.001", cwd=tmp_path)
    assert {result.status for result in results(tmp_path)} == {"FAILED"}
    assert all(result.status_reason.startswith("timeout: ") for result in results(tmp_path))
    arguments = (*IN_PROCESSES, "tracker=none", "trials=2", "resume=last", f"retry_failed={retry}")
    process = run_fastloop(*arguments, cwd=tmp_path)
    assert process.returncode == (0 if retry == "true" else 1)
    expected = {"FINISHED"} if retry == "true" else {"FAILED"}
    assert {result.status for result in results(tmp_path)} == expected


def test_resume_keeps_a_finished_result_when_preparing_fails(resumed_sweep):
    folder, _, _ = resumed_sweep
    before = trial_starts(folder)
    (data,) = folder.glob("outputs/data/*.npz")
    data.rename(folder / "data.npz")
    data.write_bytes(b"foreign")
    process = run_fastloop(*SWEEP, "resume=last", cwd=folder)
    (folder / "data.npz").rename(data)
    kept = "raw mydataset keeps its finished result; it could not be run now: BadData"
    assert kept in process.stderr
    assert trial_starts(folder) == before
    assert {result.status for result in results(folder)} == {"FINISHED"}
    assert {run.info.status for run in runs(folder)} == {"FINISHED"}


def has_grandchild(process: psutil.Process) -> bool:
    try:
        return any(child.children() for child in process.children())
    except psutil.NoSuchProcess:  # a child that ended while it was asked
        return False


@pytest.mark.heavy
def test_interrupted_resume_keeps_finished_results(tmp_path, database):
    assert run_fastloop(*IN_PROCESSES, "trials=1", cwd=tmp_path).returncode == 0
    before = trial_starts(tmp_path)
    lock = FileLock(next(tmp_path.glob("outputs/stores/.*.reference.lock")))
    with lock:  # preparing waits for this lock
        command = start_fastloop(*IN_PROCESSES, "trials=1", "resume=last", cwd=tmp_path)
        # the process that prepares, a child of the forkserver
        command.wait_until(lambda: has_grandchild(command.process))
        time.sleep(1)
        command.process.send_signal(signal.SIGTERM)
        assert command.wait().returncode == 128 + signal.SIGTERM
    assert trial_starts(tmp_path) == before
    assert {result.status for result in results(tmp_path)} == {"FINISHED"}
    assert {run.info.status for run in runs(tmp_path)} == {"FINISHED"}


def test_resume_rejects_a_sweep_of_other_jobs(resumed_sweep):
    folder, _, _ = resumed_sweep
    process = run_fastloop(*SWEEP, "batch_size=7", "resume=last", cwd=folder)
    assert process.returncode == 1
    assert process.stderr.startswith("resume=last: none of the 1 sweeps in ")
    assert process.stderr.endswith(" has a result of this command's jobs\n")
    (sweep,) = folder.glob("outputs/20*/*")
    process = run_fastloop(*SWEEP, "batch_size=7", f"resume={sweep}", cwd=folder)
    assert process.returncode == 1
    assert "it has no result of this command's jobs" in process.stderr


def test_resume_last_passes_over_a_newer_sweep_of_other_jobs(resumed_sweep):
    folder, _, _ = resumed_sweep
    before = trial_starts(folder)
    (sweep,) = folder.glob("outputs/20*/*")
    other = sweep.with_name("23-59-59-999999")
    shutil.copytree(sweep, other)
    for path in other.glob("*/result.json"):
        result = load(path.parent)
        save(dataclasses.replace(result, tags=result.tags | {"config_hash": "other"}), path.parent)
    process = run_fastloop(*SWEEP, "resume=last", cwd=folder)
    shutil.rmtree(other)
    assert process.returncode == 0, process.stderr
    assert str(sweep) in process.stdout
    assert trial_starts(folder) == before


@pytest.mark.heavy
def test_resume_without_a_sweep_prints_one_line(tmp_path):
    for name in ("last", "nowhere"):
        process = run_fastloop(*SWEEP, f"resume={name}", cwd=tmp_path)
        assert process.returncode == 1
        assert process.stderr.startswith(f"resume={name}: no result.json of a sweep in ")
        assert process.stderr.count("\n") == 1
        assert not (tmp_path / "outputs").exists()


@pytest.mark.heavy
def test_interleave_false_runs_jobs_one_after_another(tmp_path):
    process = run_fastloop(*SWEEP, "tracker=none", "interleave=false", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    first, second = trial_starts(tmp_path)
    assert max(first) < min(second)
    assert all("not interleaved" in " ".join(result.caveats) for result in results(tmp_path))


@pytest.mark.heavy
@pytest.mark.nightly
def test_concurrent_hydra_launcher_marks_results_as_concurrent(tmp_path):
    jobs = ("-m", "loader=raw,preload", "pin_memory=false,true", *QUICK)
    process = run_fastloop(*jobs, "hydra/launcher=joblib", "allow_concurrent=true", cwd=tmp_path)
    all_results = [load(path.parent) for path in sorted(tmp_path.glob("outputs/**/result.json"))]
    finished = [result for result in all_results if result.status == "FINISHED"]
    assert sorted(result.loader for result in finished) == ["preload", "raw"]
    assert all(result.tags["concurrent"] == "true" for result in all_results)
    assert " ".join(process.stdout.split()).count("other work may have run") == 1
    assert process.returncode == 0, process.stderr  # the two unsupported jobs are no error
    assert process.stderr.count("unsupported: pin_memory=true") == 2
    assert "Traceback" not in process.stderr


@pytest.mark.heavy
def test_only_one_command_measures_a_sweep_at_a_time(tmp_path):
    arguments = (*SWEEP, "tracker=none", "allow_concurrent=true")
    first = start_fastloop(*arguments, "trials=500", cwd=tmp_path)
    first.wait_until(lambda: sum(map(len, trial_starts(tmp_path))) >= 2)
    second = run_fastloop(*arguments, "trials=500", "resume=last", cwd=tmp_path)
    assert second.returncode == 1
    assert second.stderr.endswith(": another command measures this sweep\n")
    first.process.send_signal(signal.SIGKILL)
    first.wait()
    (folder,) = tmp_path.glob("outputs/20*/*")
    third = run_fastloop(*arguments, "trials=2", f"resume={folder}", cwd=tmp_path)
    assert third.returncode == 0, third.stderr
    assert not (folder / CLAIM).exists()


@pytest.mark.heavy
def test_only_one_command_measures_at_a_time(tmp_path):
    with FileLock(os.environ["FASTLOOP_LOCK"]):
        process = run_fastloop(*QUICK, cwd=tmp_path)
        assert process.returncode == 1
        assert process.stderr.startswith("another fastloop measures on this machine")
        assert "wait=true waits for it" in process.stderr
        assert process.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []
        concurrent = run_fastloop(
            "-m", "loader=raw,preload", *QUICK, "allow_concurrent=true", cwd=tmp_path
        )
        assert concurrent.returncode == 0, concurrent.stderr
        assert "other work ran concurrently with these trials" in " ".join(
            concurrent.stdout.split()
        )
        assert all(result.tags["concurrent"] == "true" for result in results(tmp_path))
        folder = ("dataset=image_folder", f"dataset.root={tmp_path}/nope", "wait=true")
        process = run_fastloop(*folder, *QUICK[: -len(MYDATASET)], cwd=tmp_path)
        assert process.returncode == 1
        assert f"dataset.root={tmp_path}/nope: no such file or folder; " in process.stderr
        assert process.stderr.count("\n") == 1
        waiting = start_fastloop(*QUICK, "wait=true", cwd=tmp_path)
        waiting.wait_until(lambda: len([*tmp_path.glob("outputs/20*/*")]) == 2)
        waiting.process.send_signal(signal.SIGINT)
        assert waiting.wait().stderr.endswith("interrupted\n")
        waiting = start_fastloop(*QUICK, "wait=true", cwd=tmp_path)
        time.sleep(3)
        assert waiting.process.is_running()
        assert len(results(tmp_path)) == 2
    assert waiting.wait().returncode == 0
    assert len(results(tmp_path)) == 3
