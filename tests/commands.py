"""The command line as a process of its own, and what it leaves on the disk."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import warm
from options import MYDATASET

from fastloop.result import Result, load

SMALL = ("epochs=2", "trials=2", "report=false", *MYDATASET)
QUICK = (
    *("epochs=1", "trials=1", "benchmark=traversal", "tracker=none", "report=false"),
    *MYDATASET,
)


def fastloop(*arguments: str, cwd: Path, module: str = "fastloop.run", **environment: str):
    """The finished command in that folder, forked from a process that has imported all it needs."""
    return warm.run(module, arguments, cwd, os.environ | environment)


def typed(*arguments: str, cwd: Path, module: str = "fastloop.run", **environment: str):
    """The finished process of `python -m fastloop.run …` in that folder, as a person starts it."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def fill(folder: Path) -> None:
    """Leave no room on the folder's file system."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


def results(cwd: Path) -> list[Result]:
    """Every result below the folder's outputs, oldest sweep first."""
    return [load(path.parent) for path in sorted(cwd.glob("outputs/20*/*/*/result.json"))]


def runs(cwd: Path) -> list:
    """Every run in the folder's MLflow database."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{cwd}/outputs/mlflow.db")
    experiment = client.get_experiment_by_name("fastloop")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))
