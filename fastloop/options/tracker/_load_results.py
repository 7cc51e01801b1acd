"""Load the results of a sweep from MLflow, for a report without the sweep's folder."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load
from fastloop.options.tracker._client import (
    filter_of_sweep,
    open_client,
    search_experiments,
    search_runs,
)
from fastloop.options.tracker._location import default_database, is_default

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def load_sweep_results(sweep: str) -> list[Result]:
    """The results of the sweep's runs in the order of their start; empty if there are none."""
    if is_default() and not default_database().exists():
        # A query would create the database.
        return []
    client = open_client()
    experiments = [experiment.experiment_id for experiment in search_experiments(client)]
    order_by = ["attributes.start_time ASC"]
    runs = search_runs(client, experiments, filter_of_sweep(sweep), order_by)
    ids = [run.info.run_id for run in runs]
    return [_download_result(client, run_id) for run_id in ids if _has_result(client, run_id)]


def _has_result(client: MlflowClient, run_id: str) -> bool:
    """True if the run has a result file; it has none if its command was killed."""
    return any(file.path == RESULT_FILE for file in client.list_artifacts(run_id))


def _download_result(client: MlflowClient, run_id: str) -> Result:
    with TemporaryDirectory() as folder:
        return load(Path(client.download_artifacts(run_id, RESULT_FILE, folder)).parent)
