"""The time of `fastloop tune` that goes into data: reading it once, and writing stores."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from slow_stages import OpensAtFirst, Samples

from fastloop.config.compose import compose_requests
from fastloop.core.time_limits import deadline_after
from fastloop.core.types import FailureKind, UsageError
from fastloop.data.chunked_reader import forecast_reading_s
from fastloop.options.tracker.none import NoTracker
from fastloop.sweep.job_state import JobState
from fastloop.sweep.prepare_stage import prepare_all
from fastloop.sweep.request import JobRequest
from fastloop.sweep.sweep_job import sweep_job
from fastloop.sweep.tracking import SweepTracker
from fastloop.tune.budget import Spending, TuneBudget, parse_budget
from fastloop.tune.pilot import time_first_pass
from fastloop.tune.planning import FIRST_PASS_UNTIL, first_pass_within


@pytest.fixture
def compose(tmp_path, monkeypatch):
    """The request of a job, with outputs in a folder of their own."""
    monkeypatch.setenv("FASTLOOP_OUTPUTS", str(tmp_path))
    # The command line is read again for flags such as -cd.
    monkeypatch.setattr("sys.argv", ["fastloop tune"])

    def compose(*overrides: str) -> JobRequest:
        (request,) = compose_requests([[*overrides]], tmp_path)
        return request

    return compose


@pytest.mark.heavy
def test_reading_that_is_too_long_is_refused_after_the_first_samples(compose):
    """A hundred million samples of 10 ms: hours on any number of cores."""
    settings = "+dataset.sleep_s=0.01", "+dataset.count=100_000_000"
    request = compose("dataset._target_=slow_stages.Samples", *settings, "loader=raw")
    spending = Spending(budget=TuneBudget(seconds=600))
    refusal = r"^budget=600s is too short: reading all samples once takes about (\d+) s; allowed: "
    with pytest.raises(UsageError, match=refusal) as caught:
        first_pass_within(
            spending, lambda deadline: time_first_pass(request, request.job, deadline=deadline)
        )
    found = re.search(r"about (\d+) s; allowed: for example budget=(\w+), or", str(caught.value))
    assert found
    assert int(found[1]) <= FIRST_PASS_UNTIL * parse_budget(found[2]).seconds


@pytest.mark.heavy
def test_preparing_is_stopped_at_the_deadline_of_the_first_pass(compose):
    """64 samples of no time, by which the forecast is made, and 64 of a second."""
    settings = "+dataset.sleep_s=1", "+dataset.count=128"
    request = compose("dataset._target_=slow_stages.SlowLater", *settings, "loader=raw")
    with pytest.raises(UsageError, match=r"^preparing the data takes longer; fastloop prepare"):
        time_first_pass(request, request.job, deadline=deadline_after(0.0))


def test_what_has_been_read_takes_no_time_again(compose):
    data = compose("dataset=digits", "loader=raw").job.data_request
    assert data.forecast_s() > 0
    data.prepare()
    assert data.forecast_s() == 0


def test_nothing_takes_no_time_to_read():
    assert forecast_reading_s([]) == 0


def test_file_that_the_first_sample_opens_is_opened_once():
    """A mean of 64 samples with the first would be 1.6 ms, and the forecast 7,812 s."""
    assert 0.1 < forecast_reading_s(OpensAtFirst(0.1, 5_000_000)) < 7_812


def test_samples_that_all_take_long_are_forecast_to():
    slow = Samples(0.001, count=1_000_000)
    slow.file = lambda: None  # not read by several processes
    assert forecast_reading_s(slow) > 999


def test_first_sample_alone_forecasts_nothing_of_others(monkeypatch):
    monkeypatch.setattr("fastloop.data.chunked_reader.PROBE_S", 0.0)
    assert 0.1 < forecast_reading_s(Samples(0.1, count=1_000_000)) < 1_000


@pytest.mark.heavy
def test_ample_budget_is_not_refused_because_of_a_file_that_is_opened(compose):
    """By a mean with the first of 200,000 samples it would take 1,562 s."""
    settings = "+dataset.sleep_s=0.5", "+dataset.count=200_000"
    request = compose("dataset._target_=slow_stages.OpensAtFirst", *settings, "loader=raw")
    spending = Spending(budget=TuneBudget(seconds=300))
    first = first_pass_within(
        spending, lambda deadline: time_first_pass(request, request.job, deadline=deadline)
    )
    assert first.pass_s > 0


@pytest.mark.heavy
def test_store_that_takes_longer_than_its_room_is_not_written(compose, tmp_path):
    """The reference exists: the time is that of the store."""
    slow = "dataset._target_=slow_stages.Samples", "+dataset.sleep_s=0.2"
    compose(*slow, "loader=raw").job.data_request.prepare()
    request = compose(*slow, "loader=np_memmap", "tracker=none")
    state = JobState(
        replace(sweep_job(request, "slow", 0), most_prepare_s=0.5),
        SweepTracker(NoTracker(), tmp_path),
    )
    prepare_all([state], request.sweep, lambda _: None)
    assert state.result.failure_kind == FailureKind.TIMEOUT
    assert state.prepared is None
    assert not stores(tmp_path, ".npy")


def stores(folder: Path, kind: str) -> list[Path]:
    return [each for each in folder.glob(f"stores/*{kind}*") if (each / "sealed.json").exists()]
