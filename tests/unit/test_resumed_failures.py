"""Jobs that failed before their data was known, in a sweep that is resumed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from known_results import result_of

from fastloop.core.types import Failure, FailureKind
from fastloop.options.tracker.none import NoTracker
from fastloop.sweep.job_state import JobState
from fastloop.sweep.resume import continue_job, fail_or_keep
from fastloop.sweep.sweep_job import SweepJob
from fastloop.sweep.tracking import SweepTracker

SETTINGS = SimpleNamespace(explain=False, retry_failed=False)
WITHOUT = {"code": "a", "python": "3.11", "versions": {"grain": None}}
WITH = {"code": "a", "python": "3.11", "versions": {"grain": "0.2.18"}}
PLAIN = result_of([], samples=10, limit=100.0)


@pytest.fixture
def state(tmp_path) -> JobState:
    earlier = replace(PLAIN, status="FAILED", status_reason="unsupported", environment=WITHOUT)
    entry = SweepJob(
        index=0,
        job=SimpleNamespace(trials=3, most_trials=3),
        launcher=SimpleNamespace(),
        folder=tmp_path,
        config_yaml="",
        result=PLAIN,
        earlier=earlier,
    )
    return JobState(entry, SweepTracker(NoTracker(), tmp_path))


@pytest.mark.parametrize(("environment", "runs"), [(WITHOUT, False), (WITH, True)])
def test_failed_job_runs_once_its_library_is_installed(state, environment, runs):
    now = replace(PLAIN, key="known", fingerprint="of the data", environment=environment)
    assert continue_job(state, now, SETTINGS) == ""
    assert state.is_running == runs


def test_a_job_that_is_measured_again_keeps_no_profile_of_other_code(state, tmp_path):
    names = ["explain.json", "timeline.json", "timeline.svg", "profile-training.txt"]
    for name in names:
        (tmp_path / name).write_text("of earlier trials")
    state.continue_from(PLAIN)
    state.begin()
    assert not {path.name for path in tmp_path.iterdir()} & {*names}


def test_job_that_fails_again_has_the_present_environment(state):
    failure = Failure(kind=FailureKind.UNSUPPORTED, message="needs a library")
    fail_or_keep(state, replace(PLAIN, environment=WITH), failure)
    assert state.result.status == "FAILED"
    assert state.result.environment == WITH
