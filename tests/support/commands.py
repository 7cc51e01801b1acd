"""fastloop's commands as processes, and the results that they write."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import fork_server
from options import MYDATASET

from fastloop.core.result import Result
from fastloop.core.result_io import load

SMALL = ("epochs=2", "trials=2", "report=false", *MYDATASET)
QUICK = (
    "epochs=1",
    "trials=1",
    "benchmark=traversal",
    "tracker=none",
    "report=false",
    *MYDATASET,
)


def run_fastloop(*arguments: str, cwd: Path, command: str = "", **environment: str):
    """Run the command in the folder, in a fork of a process that has imported its modules."""
    module, arguments = module_and_arguments(command, arguments)
    return fork_server.run(module, arguments, cwd, os.environ | environment)


def run_script(script: Path, *arguments: str, cwd: Path):
    """Run `python <script> …` in the folder, in such a fork."""
    return fork_server.run(str(script), arguments, cwd, dict(os.environ))


def start_fastloop(*arguments: str, cwd: Path, **environment: str) -> fork_server.Command:
    """Start `python -m fastloop.run …` like `run_fastloop`, without waiting for its end."""
    return fork_server.start("fastloop.run", arguments, cwd, os.environ | environment)


def spawn_fastloop(*arguments: str, cwd: Path, command: str = "", **environment: str):
    """Run `python -m fastloop.run …` or `python -m fastloop <command> …` in the folder, in a new
    interpreter."""
    module, arguments = module_and_arguments(command, arguments)
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def module_and_arguments(command: str, arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    return ("fastloop", (command, *arguments)) if command else ("fastloop.run", arguments)


def fill_disk(folder: Path) -> None:
    """Fill the folder's file system."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def results(cwd: Path) -> list[Result]:
    """All results below the folder's outputs, oldest sweep first."""
    return [load(path.parent) for path in sorted(cwd.glob("outputs/20*/*/*/result.json"))]


def trial_starts(cwd: Path) -> list[list[int]]:
    """Start times of the finished trials, a list per job."""
    return [[trial.started_ms for trial in result.trials] for result in results(cwd)]


def run_until_killed(arguments: Sequence[str], num_trials: int, cwd: Path) -> None:
    """Run the command in that folder, and kill it once so many trials have finished."""
    command = start_fastloop(*arguments, cwd=cwd)
    command.wait_until(lambda: sum(map(len, trial_starts(cwd))) >= num_trials)
    command.process.send_signal(signal.SIGKILL)
    command.wait()


def runs(cwd: Path) -> list:
    """All runs in the folder's MLflow database."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{cwd}/outputs/mlflow.db")
    experiment = client.get_experiment_by_name("fastloop")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))
