"""`tracker=mlflow`: logs each job as an MLflow run.

The import of mlflow takes a second. So only this folder imports mlflow, and only when there is
something to log. Runs are not nested, because MLflow's page hides the charts of nested runs. A call
that logs takes 3 to 45 ms, so metrics are logged at the end, when no trial runs that a call could
disturb.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import psutil

from fastloop.core.atomic_files import hold_lock
from fastloop.core.explanation import EXPLANATION_FILE
from fastloop.core.passwords import without_address_users, without_passwords
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE
from fastloop.core.spans import wall_ms
from fastloop.core.tracked_metrics import metrics
from fastloop.core.types import option
from fastloop.options.tracker._charts_view import charts_address, charts_view
from fastloop.options.tracker._client import (
    errors_name_place,
    filter_of_finished_runs,
    open_client,
    search_runs,
)
from fastloop.options.tracker._database import make_database
from fastloop.options.tracker._location import (
    check_database,
    check_default_place,
    default_artifacts,
    default_database,
    is_default,
    tracking_uri,
)
from fastloop.options.tracker._series import rank_series, trial_series
from fastloop.processes.signals import defer_signals

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RESOURCE_DOES_NOT_EXIST = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's error code for a run that does not exist."""
COMMAND_TAG = "fastloop.command"
"""Tag of a run: the pid and the start time of the process that logs it, see _this_command."""
LOCAL_UI = "http://127.0.0.1:5000"
"""Address at which the command of `_ui_command` serves MLflow's page."""
FILES = ("config.yaml", RESULT_FILE, "traceback.txt", "profile-*", EXPLANATION_FILE, "timeline.*")
"""Files of a job's folder that become artifacts of its run."""
NOTE = "Loaders compared. samples_per_s, limit_fraction: higher is better; seconds: lower."
"""Description of the experiment on MLflow's page."""


@option
class MlflowTracker:
    """A tracker that logs each job as an MLflow run.

    Runs are kept in the store that $MLFLOW_TRACKING_URI names. If the variable is not set, they are
    kept in outputs/mlflow.db and outputs/mlartifacts.
    """

    imports: ClassVar[tuple[str, ...]] = ("mlflow.entities", "mlflow.tracking")
    """Modules that every job with this tracker needs."""
    experiment: str
    """Name of the MLflow experiment."""

    @cached_property
    def _client(self) -> MlflowClient:
        """MLflow's client; a default database that is missing is made first."""
        # A new client creates the database's tables. Two clients that do so at the same time, or
        # one that is killed meanwhile, leave a broken database.
        if is_default():
            check_default_place()
            with hold_lock(default_database()):
                if not default_database().exists():
                    make_database()
        check_database()
        with errors_name_place():
            return open_client()

    @cached_property
    def _experiment_id(self) -> str:
        """Id of the experiment, which is created if it is missing.

        Abandoned runs of an existing experiment are closed.
        """
        client = self._client
        # If several commands start at the same time, only one may create the experiment.
        with errors_name_place(), hold_lock(default_database()):
            experiment = client.get_experiment_by_name(self.experiment)
            if experiment is None:
                return client.create_experiment(
                    self.experiment,
                    artifact_location=default_artifacts() if is_default() else None,
                    tags={"mlflow.note.content": NOTE},
                )
            self._close_abandoned(experiment.experiment_id)
            return experiment.experiment_id

    def _close_abandoned(self, experiment_id: str) -> None:
        """Mark each running run of this machine as KILLED if the process that logs it is gone."""
        running = search_runs(self._client, [experiment_id], "attributes.status = 'RUNNING'")
        for run in running:
            tags = run.data.tags
            # Runs of other machines are left alone, because their processes can't be seen here.
            if tags.get("host") == platform.node() and not _is_alive(tags.get(COMMAND_TAG, "")):
                self._client.set_terminated(run.info.run_id, status="KILLED")

    def holds(self, run_id: str) -> bool:
        """True if the tracker has a run with this id; False after its database was deleted."""
        from mlflow.exceptions import MlflowException

        with errors_name_place():
            try:
                self._client.get_run(run_id)
            except MlflowException as error:
                if error.error_code != RESOURCE_DOES_NOT_EXIST:
                    raise
                return False
        return True

    def start(self, result: Result) -> str:
        """Create a run with the job's params and tags, and return its id.

        An earlier run of the job is deleted.
        """
        # An import that a signal interrupts can't be repeated.
        with defer_signals():
            from mlflow.entities import Param
            from mlflow.exceptions import MlflowException

        client = self._client
        # The server is called here first, so an unreachable server is waited for only once.
        experiment_id = self._experiment_id
        if result.run_id:
            # The earlier run may be missing here, because it is in another database.
            with contextlib.suppress(MlflowException):
                client.delete_run(result.run_id)
        tags = result.tags | {COMMAND_TAG: _this_command()}
        run = client.create_run(experiment_id, run_name=result.name, tags=tags)
        params = [
            Param(name, without_address_users(str(value))) for name, value in result.params.items()
        ]
        client.log_batch(run.info.run_id, params=params)
        return run.info.run_id

    def finish(self, result: Result, folder: Path) -> None:
        """Log metrics, trials and the folder's files, and end the run with the result's status."""
        from mlflow.entities import Metric, RunTag

        now_ms = wall_ms()
        single = [Metric(name, value, now_ms, 0) for name, value in metrics(result).items()]
        points = trial_series(result) + rank_series(result)
        series = [Metric(each.name, each.value, each.time_ms, each.step) for each in points]
        self._client.log_batch(result.run_id, metrics=single + series)
        tags = {"status_reason": result.status_reason, "verdict": _verdict(result)}
        if present := [RunTag(name, value) for name, value in tags.items() if value]:
            self._client.log_batch(result.run_id, tags=present)
        for name in FILES:
            for path in sorted(folder.glob(name)):
                self._client.log_artifact(result.run_id, str(path))
        self._client.set_terminated(result.run_id, status=result.status)

    def attach(self, run_id: str, paths: Sequence[Path]) -> None:
        """Add the files to the folder report/ of the run's artifacts."""
        for path in paths:
            self._client.log_artifact(run_id, str(path), "report")

    def where(self, sweep: str) -> str:
        """Lines with a link to the sweep's charts and, without a server, the command to serve them.

        The tracking URI of a server begins with http. The view of the charts is stored as a tag of
        the experiment.
        """
        view = charts_view(sweep, self._metric_names(sweep))
        self._client.set_experiment_tag(self._experiment_id, view.tag, view.text)
        address = charts_address(self._experiment_id, view)
        uri = without_passwords(tracking_uri())
        if uri.startswith("http"):
            return f"charts: {uri.rstrip('/')}/{address}"
        return f"ui:     {_ui_command(uri)}\ncharts: {LOCAL_UI}/{address}"

    def _metric_names(self, sweep: str) -> set[str]:
        """Names of all metrics in the sweep's finished runs."""
        finished = filter_of_finished_runs(sweep)
        runs = search_runs(self._client, [self._experiment_id], finished)
        return {name for run in runs for name in run.data.metrics}


def _ui_command(uri: str) -> str:
    """The command that serves MLflow's page of the runs.

    uri: address of the runs' database, without a password.
    """
    if is_default():
        return "fastloop ui"
    # An address with a password is not printed: the shell takes it from the variable.
    store = uri if uri == tracking_uri() else '"$MLFLOW_TRACKING_URI"'
    return f"mlflow ui --backend-store-uri {store}"


def _this_command() -> str:
    """Pid and start time of this process, as text; a pid alone may be reused."""
    return f"{os.getpid()} {psutil.Process().create_time()}"


def _is_alive(command: str) -> bool:
    """True if the process with the pid and start time in `command` still runs."""
    pid, _, started = command.partition(" ")
    try:
        return str(psutil.Process(int(pid)).create_time()) == started
    except (psutil.Error, ValueError):
        return False


def _verdict(result: Result) -> str:
    """The word of the job's verdict; empty if the job was not explained."""
    return result.explanation.verdict.word if result.explanation else ""
