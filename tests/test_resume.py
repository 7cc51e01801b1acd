"""An interrupted sweep goes on where it stopped, and ends as if nothing had happened."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import QUICK, fastloop, results, runs
from filelock import FileLock

from fastloop.result import load, save

pytestmark = pytest.mark.slow
SWEEP = ("-m", "loader=raw,np_memmap", *QUICK, "tracker=mlflow", "trials=4")


def trials(cwd: Path) -> list[list[int]]:
    """Start of each finished trial, a list a job."""
    return [[trial.started_ms for trial in result.trials] for result in results(cwd)]


def killed_after(count: int, cwd: Path) -> None:
    command = psutil.Popen(
        [sys.executable, "-m", "fastloop.run", *SWEEP],
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while sum(map(len, trials(cwd))) < count:
        assert command.poll() is None
        time.sleep(0.02)
    command.send_signal(signal.SIGKILL)
    command.wait()


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, empty_database):
    """A sweep that was killed after three trials and resumed: (folder, trials before, output)."""
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "outputs").mkdir()
    shutil.copy(empty_database, folder / "outputs")
    killed_after(3, folder)
    before = trials(folder)
    done = fastloop(*SWEEP, "resume=last", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, before, done


def test_finished_trials_are_not_run_again_and_the_others_are(resumed):
    folder, before, _ = resumed
    after = trials(folder)
    assert [len(one) for one in after] == [4, 4]
    assert all(old == new[: len(old)] for old, new in zip(before, after, strict=True))
    assert {result.status for result in results(folder)} == {"FINISHED"}
    assert all({t.number for t in result.trials} == {0, 1, 2, 3} for result in results(folder))


def test_it_stays_one_sweep_with_one_run_a_job(resumed):
    folder, _, done = resumed
    (sweep,) = folder.glob("outputs/20*/*")
    assert sorted(run.info.run_name for run in runs(folder)) == [
        "np_memmap mydataset",
        "raw mydataset",
    ]
    assert {run.info.status for run in runs(folder)} == {"FINISHED"}
    assert {run.data.tags["sweep"] for run in runs(folder)} == {"/".join(sweep.parts[-2:])}
    assert "trials 4" in done.stdout
    assert str(sweep) in done.stdout


def test_a_finished_sweep_is_only_told_again(resumed):
    folder, _, _ = resumed
    before, ids = trials(folder), {run.info.run_id for run in runs(folder)}
    (sweep,) = folder.glob("outputs/20*/*")
    done = fastloop(*SWEEP, f"resume={sweep}", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert trials(folder) == before
    assert {run.info.run_id for run in runs(folder)} == ids
    assert "np_memmap" in done.stdout


def test_more_trials_are_added_to_those_that_are_there(resumed):
    folder, _, _ = resumed
    before = trials(folder)
    done = fastloop(*SWEEP, "trials=5", "resume=last", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert [one[:4] for one in trials(folder)] == before
    assert [len(one) for one in trials(folder)] == [5, 5]
    assert len(runs(folder)) == 2


def test_what_was_measured_with_other_code_is_not_mixed_in(tmp_path):
    fastloop(*SWEEP, "tracker=none", "trials=2", cwd=tmp_path)
    for path in tmp_path.glob("outputs/20*/*/*/result.json"):
        result = load(path.parent)
        versions = result.environment["versions"] | {"torch": "1.0"}
        environment = result.environment | {"versions": versions}
        save(dataclasses.replace(result, environment=environment, key="another"), path.parent)
    done = fastloop(*SWEEP, "tracker=none", "trials=3", "resume=last", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "raw mydataset is measured anew, torch 1.0 to " in done.stderr
    assert [len(result.trials) for result in results(tmp_path)] == [3, 3]
    kept = [*tmp_path.glob("outputs/20*/*/*/result-another.json")]
    assert len(kept) == 2


@pytest.mark.parametrize("retry", ["true", "false"])
def test_failed_jobs_are_tried_again_unless_told(tmp_path, retry):
    fastloop(*SWEEP, "tracker=none", "trials=2", "trial_timeout_s=0.001", cwd=tmp_path)
    assert {result.status for result in results(tmp_path)} == {"FAILED"}
    assert all(result.status_reason.startswith("timeout: ") for result in results(tmp_path))
    again = (*SWEEP, "tracker=none", "trials=2", "resume=last", f"retry_failed={retry}")
    done = fastloop(*again, cwd=tmp_path)
    assert done.returncode == (0 if retry == "true" else 1)
    wanted = {"FINISHED"} if retry == "true" else {"FAILED"}
    assert {result.status for result in results(tmp_path)} == wanted


def test_what_can_not_be_prepared_now_stays_as_it_finished(resumed):
    folder, _, _ = resumed
    before = trials(folder)
    (data,) = folder.glob("outputs/data/*.npz")
    data.rename(folder / "data.npz")
    data.write_bytes(b"foreign")
    done = fastloop(*SWEEP, "resume=last", cwd=folder)
    (folder / "data.npz").rename(data)
    assert "raw mydataset stays as it finished; now it could not be run: BadData" in done.stderr
    assert trials(folder) == before
    assert {result.status for result in results(folder)} == {"FINISHED"}
    assert {run.info.status for run in runs(folder)} == {"FINISHED"}


def test_an_interrupted_resume_leaves_what_it_had_not_taken_up(tmp_path, database):
    assert fastloop(*SWEEP, "trials=1", cwd=tmp_path).returncode == 0
    before = trials(tmp_path)
    stuck = FileLock(next(tmp_path.glob("outputs/stores/.*.reference.lock")))
    with stuck:  # preparing waits for it
        again = psutil.Popen(
            [sys.executable, "-m", "fastloop.run", *SWEEP, "trials=1", "resume=last"], cwd=tmp_path
        )
        while not any("forkserver" in str(one.cmdline()) for one in again.children(recursive=True)):
            time.sleep(0.1)
        time.sleep(1)
        again.send_signal(signal.SIGTERM)
        assert again.wait() == 128 + signal.SIGTERM
    assert trials(tmp_path) == before
    assert {result.status for result in results(tmp_path)} == {"FINISHED"}
    assert {run.info.status for run in runs(tmp_path)} == {"FINISHED"}


def test_another_sweep_is_not_resumed_into(resumed):
    folder, _, _ = resumed
    done = fastloop(*SWEEP, "batch_size=7", "resume=last", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("resume=")
    assert "none of this command's jobs is in it" in done.stderr


def test_nothing_to_resume_is_one_line(tmp_path):
    for name in ("last", "nowhere"):
        done = fastloop(*SWEEP, f"resume={name}", cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith(f"resume={name}: no result.json of a sweep in ")
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "outputs").exists()


def test_job_after_job_where_that_is_wanted(tmp_path):
    done = fastloop(*SWEEP, "tracker=none", "interleave=false", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = trials(tmp_path)
    assert max(first) < min(second)
    assert all("not interleaved" in " ".join(one.flags) for one in results(tmp_path))


def test_a_launcher_of_processes_beside_each_other_measures_outside_of_the_ranking(tmp_path):
    jobs = ("-m", "loader=raw,preload", "pin_memory=false,true", *QUICK)
    beside = fastloop(*jobs, "hydra/launcher=joblib", "allow_concurrent=true", cwd=tmp_path)
    measured = [load(path.parent) for path in sorted(tmp_path.glob("outputs/**/result.json"))]
    finished = [one for one in measured if one.status == "FINISHED"]
    assert sorted(one.loader for one in finished) == ["preload", "raw"]
    assert all(one.tags["concurrent"] == "true" for one in measured)
    assert beside.stdout.count("concurrent: other work ran beside it") == 2
    assert beside.returncode == 0, beside.stderr  # two of them are unsupported here, and say so
    assert beside.stderr.count("unsupported: pin_memory=true") == 2
    assert "Traceback" not in beside.stderr


def test_one_benchmark_at_a_time(tmp_path):
    path = Path(os.environ["TMPDIR"]) / "fastloop-measures.lock"
    with FileLock(path):
        done = fastloop(*QUICK, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr.startswith("another fastloop measures on this machine")
        assert done.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []
        beside = fastloop("-m", "loader=raw,preload", *QUICK, "allow_concurrent=true", cwd=tmp_path)
        assert beside.returncode == 0, beside.stderr
        assert "other work ran beside these trials" in " ".join(beside.stdout.split())
        assert all(result.tags["concurrent"] == "true" for result in results(tmp_path))
        waiting = psutil.Popen(
            [sys.executable, "-m", "fastloop.run", *QUICK, "wait=true"], cwd=tmp_path
        )
        time.sleep(5)
        assert waiting.poll() is None
        assert len(results(tmp_path)) == 2
    assert waiting.wait() == 0
    assert len(results(tmp_path)) == 3
