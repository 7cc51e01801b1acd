"""Hydra launchers that hand each job to a process of its own, as submitit does on a cluster."""

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
from commands import QUICK, fastloop, results, runs, typed
from options import library

pytestmark = pytest.mark.slow
SUBMITIT = ("hydra/launcher=submitit_local", "allow_concurrent=true")
NODES = ("launcher=torchrun", "launcher.nnodes=2", "launcher.rdzv_endpoint=localhost:29400")
INLINE = (*QUICK, "isolation=inline")
OWN = """
import os
from contextlib import contextmanager
import torch
from fastloop.loaders.raw import Raw

class Noted:
    '''Notes who reads it.'''
    def __len__(self):
        return 203

    def __getitem__(self, index):
        with open("readers", "a") as file:
            print(os.getpid(), file=file)
        return torch.full((5, 3), float(index)), index % 10

class Fine(Raw):
    pass

class Failing(Raw):
    @contextmanager
    def open(self, prepared, plan):
        raise ValueError("no such column: x")
        yield

class Gone(Raw):
    @contextmanager
    def open(self, prepared, plan):
        os._exit(7)
        yield
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    library("hydra_plugins.hydra_submitit_launcher")
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def by_name(folder: Path) -> dict:
    return {result.name: result for result in results(folder)}


def test_jobs_that_submitit_starts_come_together_as_one_sweep(folder, database):
    jobs = ("-m", "dataset._target_=own.Noted", "loader=np_memmap", "seed=0,1", *QUICK[:5])
    done = fastloop(*jobs, *SUBMITIT, "tracker=mlflow", "report=true", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = by_name(folder)
    assert set(found) == {f"np_memmap own.Noted seed={seed}" for seed in (0, 1)}
    assert {result.status for result in found.values()} == {"FINISHED"}
    (sweep,) = folder.glob("outputs/20*/*")
    assert {result.tags["sweep"] for result in found.values()} == {"/".join(sweep.parts[-2:])}
    assert all(result.tags["concurrent"] == "true" for result in found.values())
    assert sorted(run.info.run_name for run in runs(folder)) == sorted(found)
    assert {run.info.status for run in runs(folder)} == {"FINISHED"}
    # both wanted reference and store at once: each was made once, by whichever came first
    assert len((folder / "readers").read_text().split()) < 3 * 203
    assert [path.name for path in sweep.glob("*/report.html")] == ["report.html"]
    assert (
        f"hydra/launcher=submitit_local: jobs handed to it: 2; results go to {sweep}" in done.stderr
    )
    for said in (f"files:  {sweep}", "report: ", "charts: ", "other work ran beside these trials"):
        assert said in " ".join(done.stdout.split("\n"))
    told = typed(f"folder={sweep}", "format=csv", cwd=folder, module="fastloop.report")
    assert told.returncode == 0, told.stderr
    assert len((sweep / "report" / "report.csv").read_text().splitlines()) == 3


def test_a_job_that_fails_is_a_row_and_one_whose_process_is_gone_has_no_result_yet(folder):
    jobs = ("-m", "loader._target_=own.Fine,own.Failing", *INLINE, *SUBMITIT)
    done = fastloop(*jobs, cwd=folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert sorted(result.status for result in results(folder)) == ["FAILED", "FINISHED"]
    assert "FAILED: ValueError: no such column: x" in done.stdout
    (details,) = folder.glob("outputs/20*/*/*/traceback.txt")
    assert 'raise ValueError("no such column: x")' in details.read_text()
    shutil.rmtree(folder / "outputs")

    done = fastloop("-m", "loader._target_=own.Gone", *INLINE, *SUBMITIT, cwd=folder)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(r"submitit_local: Job .* has not produced any output", done.stderr)
    assert "no result yet" in done.stderr


def test_a_job_that_its_cluster_ends_is_killed_in_order_and_goes_on_where_it_is_begun_again(
    folder, database
):
    jobs = ("-m", "loader=raw", *QUICK, "tracker=mlflow", *SUBMITIT, "trials=300")
    command = [sys.executable, "-m", "fastloop.run", *jobs]
    waiting = subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not any(result.trials for result in results(folder)):
        assert waiting.poll() is None, waiting.communicate()
        time.sleep(0.1)
    (submission,) = folder.glob("outputs/20*/*/.submitit/*/*_submitted.pkl")
    number = submission.parent.name
    (job,) = psutil.Process(int(number)).children()
    environment = job.environ()
    job.send_signal(signal.SIGTERM)
    out = waiting.communicate()[0]
    assert waiting.returncode == 1
    assert "KILLED: SystemExit" in out
    (killed,) = results(folder)
    assert (killed.status, killed.status_reason[:10]) == ("KILLED", "SystemExit")
    assert [run.info.status for run in runs(folder)] == ["KILLED"]

    again = [sys.executable, "-m", "submitit.core._submit", str(submission.parent)]
    environment |= {"FASTLOOP_TEST": "again"}
    begun = psutil.Popen(again, cwd=folder, env=environment, stderr=subprocess.PIPE)
    while len(results(folder)[0].trials) <= len(killed.trials):
        assert begun.poll() is None, begun.communicate()
        time.sleep(0.1)
    begun.send_signal(signal.SIGTERM)
    begun.communicate()
    (goes_on,) = results(folder)
    assert goes_on.trials[: len(killed.trials)] == killed.trials
    assert len(runs(folder)) == 1


def test_with_wait_jobs_on_one_machine_take_turns(folder):
    jobs = ("-m", "loader=raw", "seed=0,1", *INLINE, "trials=3")
    done = fastloop(*jobs, *SUBMITIT, "wait=true", cwd=folder)
    assert done.returncode == 0, done.stderr
    spans = [
        [
            clock
            for t in one.trials
            for m in t.benchmarks.values()
            for clock in (m.start_ns, m.stop_ns)
        ]
        for one in results(folder)
    ]
    first, second = sorted(spans)
    assert max(first) < min(second)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-m", SUBMITIT[0]), "it runs jobs beside each other or on different machines"),
        (SUBMITIT, "hydra/launcher=submitit_local: only a sweep is handed to it: -m"),
        (("-m", *SUBMITIT, "trials=2,-1"), "trials=-1: Input should be greater than 0"),
        (
            ("-m", *SUBMITIT, "resume=last"),
            "resume=last: hydra/launcher=submitit_local: only basic",
        ),
        (("-m", *SUBMITIT, "hydra.launcher.nodes=2"), "hydra.launcher.nodes=2: allowed is 1, each"),
        (
            ("-m", *SUBMITIT, *NODES),
            "submitit_local: these processes do one job at a time, together",
        ),
        (("-m", "hydra/launcher=submitit_slurm", SUBMITIT[1]), 'Could not detect "srun"'),
    ],
)
def test_what_no_job_can_be_measured_with_is_said_before_any_is_handed_out(folder, arguments, said):
    if "srun" in said and shutil.which("srun"):
        pytest.skip("there is a cluster here")
    done = fastloop(*QUICK, *arguments, cwd=folder, PATH=os.environ["PATH"])
    assert done.returncode == 1
    assert done.stdout == ""
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    assert [path.name for path in folder.iterdir()] == ["own.py"]
