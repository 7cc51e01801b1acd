"""The configurations of a workload with their data prepared, kept in a file.

python -m experiments.tune.grid makes the files of all workloads.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from experiments.tune.workloads import WORKLOADS, Workload, configurations
from fastloop.core.atomic_files import write_beside
from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import JobFailed
from fastloop.options.launcher.single import SingleLauncher
from fastloop.trial.job import Job

FOLDER = Path("outputs/tune")
ROUNDS_FILE = FOLDER / "rounds.jsonl"
PILOTS_FILE = FOLDER / "pilots.jsonl"
PEAKS_FILE = FOLDER / "peaks.jsonl"
LAUNCHER = SingleLauncher(isolation="forkserver")


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A job, ready to be timed."""

    job: Job
    prepared: PreparedData


Grid = Mapping[str, Configuration]
"""Name of a configuration -> the configuration; the user's own comes first."""


def grid_path(workload: Workload) -> Path:
    """The path of the file with the grid of a workload."""
    return FOLDER / f"{workload.name.replace(' ', '_')}.grid"


def load_grid(workload: Workload) -> Grid:
    """Read the grid of a workload. Raises FileNotFoundError if it has not been made."""
    return pickle.loads(grid_path(workload).read_bytes())


def make_grid(workload: Workload) -> Grid:
    """Compose the configurations and write their stores. Configurations that fail are left out."""
    prepared: dict[str, PreparedData | None] = {}
    grid = {}
    for name, job in configurations(workload).items():
        key = repr(job.data_request)
        if key not in prepared:
            try:
                prepared[key] = LAUNCHER.call(job.data_request.prepare)
            except JobFailed as error:
                prepared[key] = None
                print(f"{workload.name}: {name}: {error}", flush=True)
        if found := prepared[key]:
            grid[name] = Configuration(job=job, prepared=found)
    return grid


def main() -> None:
    """Make the grids that are missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for workload in WORKLOADS:
        if not grid_path(workload).exists():
            grid = make_grid(workload)
            with write_beside(grid_path(workload)) as path:
                path.write_bytes(pickle.dumps(grid))
            print(f"{workload.name}: {len(grid)} configurations", flush=True)


if __name__ == "__main__":
    # pickle finds a class by the name of its module, which must not be __main__.
    from experiments.tune.grid import main as run

    run()
