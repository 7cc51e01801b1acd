"""`tracker=mlflow`: one flat run a job, for comparison in the MLflow UI. The only user of mlflow.

Runs are flat because the UI hides the charts of nested ones; metrics are logged once, at the end,
because each call costs 3 to 45 ms and nothing may disturb a trial.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

# Before the import: telemetry is a thread beside the measurements; a server that refuses is waited
# for 247 s by default, with two tries 4, and one that never answers three times 120 s.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

import psutil
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy import event
from sqlalchemy.engine import Engine

from fastloop import stats
from fastloop.files import flushed, locked, outputs_folder, written_beside
from fastloop.result import RESULT_FILE, Result, load, measured, metrics
from fastloop.spans import wall_ms
from fastloop.types import option

# It tells of a first database's tables, and every error with a traceback; errors are told by us.
logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
COMMAND_TAG = "fastloop.command"
LOCAL_UI = "http://127.0.0.1:5000"
NOTE = "Loaders compared. samples_per_s, limit_fraction: higher is better; seconds: lower."


@option
class MlflowTracker:
    """outputs/mlflow.db and outputs/mlartifacts, unless MLFLOW_TRACKING_URI names another store."""

    experiment: str

    @cached_property
    def _client(self) -> MlflowClient:
        # A client makes the database's tables as soon as it is made. Two that do it at the same
        # moment break the database for good, and so does one that is killed meanwhile.
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            with locked(_database()):
                if not _database().exists():
                    _make_database()
        return MlflowClient(tracking_uri=_uri())

    @cached_property
    def _experiment_id(self) -> str:
        client = self._client
        with locked(_database()):  # of two first starts one makes the experiment
            found = client.get_experiment_by_name(self.experiment)
            if found is not None:
                self._close_abandoned(found.experiment_id)
                return found.experiment_id
            where = None if os.environ.get("MLFLOW_TRACKING_URI") else _artifacts()
            return client.create_experiment(
                self.experiment, artifact_location=where, tags={"mlflow.note.content": NOTE}
            )

    def _close_abandoned(self, experiment_id: str) -> None:
        """End this machine's runs whose command was killed, which could not end them itself."""
        for run in self._client.search_runs([experiment_id], "attributes.status = 'RUNNING'"):
            tags = run.data.tags
            if tags.get("host") == platform.node() and not _is_alive(tags.get(COMMAND_TAG, "")):
                self._client.set_terminated(run.info.run_id, status="KILLED")

    def start(self, result: Result) -> str:
        """The id of a new run with the job's params and tags, in place of an earlier one."""
        if result.run_id:
            with contextlib.suppress(MlflowException):  # it may be in another store
                self._client.delete_run(result.run_id)
        tags = result.tags | {COMMAND_TAG: _this_command()}
        run = self._client.create_run(self._experiment_id, run_name=result.name, tags=tags)
        params = [Param(name, str(value)) for name, value in result.params.items()]
        self._client.log_batch(run.info.run_id, params=params)
        return run.info.run_id

    def finish(self, result: Result, folder: Path) -> None:
        """Log metrics, trials and files, and end the run with the result's status."""
        now_ms = wall_ms()
        single = [Metric(name, value, now_ms, 0) for name, value in metrics(result).items()]
        several = _trial_metrics(result) + _rank_metrics(result)
        self._client.log_batch(result.run_id, metrics=single + several)
        if result.status_reason:
            tags = [RunTag("status_reason", result.status_reason)]
            self._client.log_batch(result.run_id, tags=tags)
        for name in ("config.yaml", RESULT_FILE, "traceback.txt", "profile-*"):
            for path in sorted(folder.glob(name)):
                self._client.log_artifact(result.run_id, str(path))
        self._client.set_terminated(result.run_id, status=result.status)

    def attach(self, run_id: str, paths: Sequence[Path]) -> None:
        """Log the files as the run's report/…."""
        for path in paths:
            self._client.log_artifact(run_id, str(path), "report")

    def where(self, sweep: str) -> str:
        """The sweep's charts, by the only address that shows them at once, and how to serve it."""
        remote = _uri().startswith("http")
        only = quote(f"tags.sweep = '{sweep}'")
        query = f"searchFilter={only}&compareRunsMode=CHART&workflowType=machine_learning"
        server = _uri().rstrip("/") if remote else LOCAL_UI
        serve = "" if remote else f"ui:     mlflow ui --backend-store-uri {_uri()}\n"
        return f"{serve}charts: {server}/#/experiments/{self._experiment_id}/runs?{query}"


def recorded_results(sweep: str) -> list[Result]:
    """The results of the sweep's runs in the order of their start; empty where none is known."""
    if not os.environ.get("MLFLOW_TRACKING_URI") and not (outputs_folder() / "mlflow.db").exists():
        return []  # asking would make the file
    client = MlflowClient(tracking_uri=_uri())
    experiments = [one.experiment_id for one in client.search_experiments()]
    quoted = sweep.replace("'", "")
    runs = client.search_runs(
        experiments, f"tags.sweep = '{quoted}'", order_by=["attributes.start_time ASC"]
    )
    ids = [run.info.run_id for run in runs]
    return [_downloaded(client, one) for one in ids if _has_result(client, one)]


def _has_result(client: MlflowClient, run_id: str) -> bool:
    """False for a run that was closed because its command had been killed."""
    return any(file.path == RESULT_FILE for file in client.list_artifacts(run_id))


def _downloaded(client: MlflowClient, run_id: str) -> Result:
    with TemporaryDirectory() as folder:
        return load(Path(client.download_artifacts(run_id, RESULT_FILE, folder)).parent)


def _this_command() -> str:
    """This process, by number and time of start: numbers are used again."""
    return f"{os.getpid()} {psutil.Process().create_time()}"


def _is_alive(command: str) -> bool:
    pid, _, started = command.partition(" ")
    try:
        return str(psutil.Process(int(pid)).create_time()) == started
    except (psutil.Error, ValueError):
        return False


def _uri() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_database()}"


def _database() -> Path:
    return outputs_folder() / "mlflow.db"


def _make_database() -> None:
    with written_beside(_database()) as beside:
        with _unsynchronized():
            MlflowClient(tracking_uri=f"sqlite:///{beside}").search_experiments()
        flushed(beside)


@contextlib.contextmanager
def _unsynchronized() -> Iterator[None]:
    """SQLite does not wait for the disk after each of the hundreds of statements that make the
    tables: nobody reads the file before all of it is there."""

    def relax(connection: Any, _: object) -> None:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = MEMORY")

    event.listen(Engine, "connect", relax)
    try:
        yield
    finally:
        event.remove(Engine, "connect", relax)


def _artifacts() -> str:
    return (outputs_folder() / "mlartifacts").as_uri()


def _trial_metrics(result: Result) -> list[Metric]:
    return [
        Metric(f"trials/{name}_seconds", one.seconds, trial.started_ms, trial.number)
        for trial in result.trials
        for name, one in trial.benchmarks.items()
    ]


def _rank_metrics(result: Result) -> list[Metric]:
    """Each rank as a step: the median of its seconds, and what it waited in an epoch."""
    now_ms, found = wall_ms(), []
    for name in result.trials[0].benchmarks if result.trials else ():
        seconds = zip(*[one.rank_seconds for one in measured(result, name)], strict=True)
        seen = result.attribution.get(name)
        waits = [one.wait_s + one.place_s for one in seen.ranks] if seen else []
        told = {"seconds": [stats.median(list(one)) for one in seconds], "wait_s": waits}
        found += [
            Metric(f"ranks/{name}_{figure}", value, now_ms, rank)
            for figure, values in told.items()
            for rank, value in enumerate(values)
        ]
    return found
