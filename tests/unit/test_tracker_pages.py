"""A store with more runs than MLflow returns at once: all of them are found."""

from __future__ import annotations

import platform
from dataclasses import replace
from itertools import count

import pytest
from known_results import result_of

from fastloop.core.result_io import save
from fastloop.options.tracker import _client
from fastloop.options.tracker._load_results import load_sweep_results
from fastloop.options.tracker.mlflow import COMMAND_TAG, MlflowTracker

SWEEP, NAMES = "2026-01-01/12-00-00", [f"job {number}" for number in range(5)]
pytestmark = pytest.mark.heavy


@pytest.fixture
def tracker(database, monkeypatch):
    """A tracker with an empty store, which returns two runs at once."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(database.parent))
    monkeypatch.setattr(_client, "PAGE", 2)
    return MlflowTracker(experiment="fastloop")


def log_job(tracker, folder, name):
    known = result_of([1.0, 2.0], samples=100, limit=200.0)
    result = replace(known, name=name, tags={"sweep": SWEEP}, status="FINISHED")
    result = replace(result, run_id=tracker.start(result))
    save(result, folder)
    tracker.finish(result, folder)


def test_results_of_all_pages_are_loaded_in_the_order_of_their_start(tracker, tmp_path):
    for number, name in zip(count(), NAMES):
        folder = tmp_path / str(number)
        folder.mkdir()
        log_job(tracker, folder, name)
    log_job(MlflowTracker(experiment="another"), tmp_path, "last")
    MlflowTracker(experiment="a third").start(result_of([1.0], samples=1, limit=1.0))
    assert [result.name for result in load_sweep_results(SWEEP)] == [*NAMES, "last"]


def test_abandoned_runs_of_all_pages_are_closed(tracker):
    tags = {"host": platform.node(), COMMAND_TAG: "1 0.0"}
    client = tracker._client
    experiment = client.create_experiment("fastloop")
    ids = [client.create_run(experiment, tags=tags).info.run_id for _ in NAMES]
    assert tracker._experiment_id == experiment
    assert {client.get_run(each).info.status for each in ids} == {"KILLED"}
