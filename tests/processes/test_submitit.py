"""Hydra launchers that run each job in its own process, as submitit does on a cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from commands import QUICK, results, run_fastloop, runs, start_fastloop
from options import require_library

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
SUBMITIT = ("hydra/launcher=submitit_local", "allow_concurrent=true")
INLINE = (*QUICK, "isolation=inline")
USER_CODE = """
import os
from contextlib import contextmanager
import torch
from fastloop.options.loader.raw import RawLoader

class ReaderDataset:
    '''Records the process of each read.'''
    def __len__(self):
        return 203

    def __getitem__(self, index):
        with open("readers", "a") as file:
            print(os.getpid(), file=file)
        return torch.full((5, 3), float(index)), index % 10

class Fine(RawLoader):
    pass

class Failing(RawLoader):
    @contextmanager
    def open(self, prepared, plan):
        raise ValueError("no such column: x")
        yield

class Gone(RawLoader):
    @contextmanager
    def open(self, prepared, plan):
        os._exit(7)
        yield
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    require_library("hydra_plugins.hydra_submitit_launcher")
    (tmp_path / "mine.py").write_text(USER_CODE)
    return tmp_path


def by_name(folder: Path) -> dict:
    return {result.name: result for result in results(folder)}


def test_submitit_jobs_form_one_sweep(folder, database):
    jobs = ("-m", "dataset._target_=mine.ReaderDataset", "loader=np_memmap", "seed=0,1", *QUICK[:5])
    process = run_fastloop(*jobs, *SUBMITIT, "tracker=mlflow", "report=true", cwd=folder)
    assert process.returncode == 0, process.stderr
    results_by_name = by_name(folder)
    assert set(results_by_name) == {f"np_memmap mine.ReaderDataset seed={seed}" for seed in (0, 1)}
    assert {result.status for result in results_by_name.values()} == {"FINISHED"}
    (sweep,) = folder.glob("outputs/20*/*")
    assert {result.tags["sweep"] for result in results_by_name.values()} == {
        "/".join(sweep.parts[-2:])
    }
    assert all(result.tags["concurrent"] == "true" for result in results_by_name.values())
    assert sorted(run.info.run_name for run in runs(folder)) == sorted(results_by_name)
    assert {run.info.status for run in runs(folder)} == {"FINISHED"}
    # both jobs need reference and store at the same time: the first one writes each, once
    # apart from a few probed samples
    assert len((folder / "readers").read_text().split()) < 4 * 203
    assert [path.name for path in sweep.glob("*/report.html")] == ["report.html"]
    assert f"hydra/launcher=submitit_local: jobs: 2; results go to {sweep}" in process.stderr
    for message in (
        f"files:  {sweep}",
        "report: ",
        "charts: ",
        "other work ran concurrently with these trials",
    ):
        assert message in " ".join(process.stdout.split("\n"))
    report = run_fastloop(f"folder={sweep}", "format=csv", cwd=folder, command="report")
    assert report.returncode == 0, report.stderr
    assert len((sweep / "report" / "report.csv").read_text().splitlines()) == 3


@pytest.mark.nightly
def test_failed_submitit_job_is_a_row_and_a_lost_one_has_no_result(folder):
    # the launcher gets the sweep's path in Hydra's grammar, which takes it for two paths
    folder = shutil.copytree(folder, folder / "müller,1")
    jobs = ("-m", "loader._target_=mine.Fine,mine.Failing", *INLINE, *SUBMITIT)
    process = run_fastloop(*jobs, cwd=folder)
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert sorted(result.status for result in results(folder)) == ["FAILED", "FINISHED"]
    assert "FAILED: ValueError: no such column: x" in process.stdout
    (details,) = folder.glob("outputs/20*/*/*/traceback.txt")
    assert 'raise ValueError("no such column: x")' in details.read_text()
    shutil.rmtree(folder / "outputs")

    process = run_fastloop("-m", "loader._target_=mine.Gone", *INLINE, *SUBMITIT, cwd=folder)
    assert process.returncode == 1
    assert "Traceback" not in process.stderr
    assert re.search(r"submitit_local: Job .* has not produced any output", process.stderr)
    assert "no result: its process" in process.stderr


@pytest.mark.nightly
def test_submitit_job_ended_by_its_cluster_resumes_when_restarted(folder, database):
    jobs = ("-m", "loader=raw", *INLINE, "tracker=mlflow", *SUBMITIT, "trials=3000")
    command = start_fastloop(*jobs, cwd=folder)
    command.wait_until(lambda: any(result.trials for result in results(folder)))
    (submission,) = folder.glob("outputs/20*/*/.submitit/*/*_submitted.pkl")
    pid = submission.parent.name
    (job,) = psutil.Process(int(pid)).children()
    environment = job.environ()
    job.send_signal(signal.SIGTERM)
    process = command.wait()
    assert process.returncode == 1
    assert "KILLED: SystemExit" in process.stdout
    (killed,) = results(folder)
    assert (killed.status, killed.status_reason[:10]) == ("KILLED", "SystemExit")
    assert [run.info.status for run in runs(folder)] == ["KILLED"]

    restart = [sys.executable, "-m", "submitit.core._submit", str(submission.parent)]
    environment |= {"FASTLOOP_TEST": "restarted"}
    restarted = psutil.Popen(restart, cwd=folder, env=environment, stderr=subprocess.PIPE)
    while len(results(folder)[0].trials) <= len(killed.trials):
        assert restarted.poll() is None, restarted.communicate()
        time.sleep(0.1)
    restarted.send_signal(signal.SIGTERM)
    restarted.communicate()
    (resumed,) = results(folder)
    assert resumed.trials[: len(killed.trials)] == killed.trials
    assert len(runs(folder)) == 1


@pytest.mark.nightly
def test_submitit_jobs_with_wait_take_turns_on_one_machine(folder):
    jobs = ("-m", "loader=raw", "seed=0,1", *INLINE, "trials=3")
    process = run_fastloop(*jobs, *SUBMITIT, "wait=true", cwd=folder)
    assert process.returncode == 0, process.stderr
    spans = [
        [
            clock_ns
            for trial in result.trials
            for measurement in trial.benchmarks.values()
            for clock_ns in (measurement.start_ns, measurement.stop_ns)
        ]
        for result in results(folder)
    ]
    first, second = sorted(spans)
    assert max(first) < min(second)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-m", SUBMITIT[0]), "it runs jobs concurrently or on different machines"),
        (SUBMITIT, "hydra/launcher=submitit_local: it runs sweeps only; add -m"),
        (("-m", *SUBMITIT, "trials=2,-1"), "trials=-1: allowed: auto, or a whole"),
        (
            ("-m", *SUBMITIT, "resume=last"),
            "resume=last: hydra/launcher=submitit_local: only hydra",
        ),
        (("-m", *SUBMITIT, "hydra.launcher.nodes=2"), "hydra.launcher.nodes=2: allowed: 1; each"),
        (("-m", "hydra/launcher=submitit_slurm", SUBMITIT[1]), 'Could not detect "srun"'),
    ],
)
def test_invalid_submitit_settings_are_rejected_before_submission(folder, arguments, message):
    if "srun" in message and shutil.which("srun"):
        pytest.skip("srun is installed")
    process = run_fastloop(*QUICK, *arguments, cwd=folder, PATH=os.environ["PATH"])
    assert process.returncode == 1
    assert process.stdout == ""
    assert message in process.stderr.splitlines()[-1]
    assert "Traceback" not in process.stderr
    assert [path.name for path in folder.iterdir()] == ["mine.py"]
