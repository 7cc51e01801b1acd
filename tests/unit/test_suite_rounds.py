"""The results of a suite's folder: those that count, and those that are measured again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from known_results import result_of

from fastloop.config.command_line import quote
from fastloop.core.machine import describe_machine
from fastloop.core.result import Result
from fastloop.core.result_io import save
from fastloop.options.launcher.single import SingleLauncher
from fastloop.suite import measure_round
from fastloop.suite.build_suite_file import OTHER_DATA, build_suite_file
from fastloop.suite.measure_round import MeasuredRow, MeasuredWorkload, SuiteRun
from fastloop.suite.workloads import WORKLOADS, SuiteRow
from fastloop.sweep.environment_facts import describe_environment

LAUNCHER = SingleLauncher(isolation="forkserver")
RAW, SPDL = SuiteRow(loader="raw"), SuiteRow(loader="spdl")


@pytest.fixture
def request_of(monkeypatch):
    """A function that makes the request of a job with this hash and number of trials."""
    monkeypatch.setattr(measure_round, "config_hash", lambda request: request.key)

    def make(key: str, trials: int = 3) -> SimpleNamespace:
        job = SimpleNamespace(trials=trials, most_trials=trials)
        return SimpleNamespace(key=key, launcher=LAUNCHER, job=job)

    return make


def save_result(folder: Path, key: str, **changes) -> Result:
    result = replace(
        result_of([1.0, 1.1, 1.2], samples=10, limit=100.0),
        tags={"config_hash": key, "sweep": "suite/small_rows"},
        params={"trials": 3},
        status="FINISHED",
        environment=describe_environment(LAUNCHER),
    )
    result = replace(result, **changes)
    save(result, folder)
    return result


def test_results_of_jobs_of_one_name_are_all_found(tmp_path, request_of):
    # The second is of a workload whose size has changed since.
    save_result(tmp_path / "0", "before")
    now = save_result(tmp_path / "0-123", "now")
    assert measure_round._final_results({RAW: request_of("now")}, tmp_path) == {RAW: now}


def test_finished_results_of_the_same_versions_are_not_measured_again(tmp_path, request_of):
    result = save_result(tmp_path / "0", "a")
    assert measure_round._final_results({RAW: request_of("a")}, tmp_path) == {RAW: result}


@pytest.mark.parametrize("changes", [{"status": "RUNNING"}, {"environment": {"code": "old"}}])
def test_results_that_do_not_count_are_measured_again(tmp_path, request_of, changes):
    save_result(tmp_path / "0", "a", **changes)
    assert measure_round._final_results({RAW: request_of("a")}, tmp_path) == {}


def test_more_trials_are_measured_if_more_are_asked_for(tmp_path, request_of):
    save_result(tmp_path / "0", "a")
    assert measure_round._final_results({RAW: request_of("a", trials=7)}, tmp_path) == {}
    # The time was up before the seventh.
    result = save_result(tmp_path / "0", "a", params={"trials": 7})
    assert measure_round._final_results({RAW: request_of("a", trials=7)}, tmp_path) == {RAW: result}


@pytest.mark.parametrize("runs", [False, True])
def test_a_workload_that_no_loader_supports_is_null_and_does_not_end_the_suite(
    tmp_path, monkeypatch, request_of, runs
):
    monkeypatch.setattr(measure_round, "_reasons_to_leave_out", lambda *_: {SPDL: "left out"})
    monkeypatch.setattr(measure_round, "_requests", lambda *_: {RAW: request_of("a")})
    monkeypatch.setattr(measure_round, "_measure_requests", lambda *_: {RAW: "a result"})
    reason = "" if runs else "it needs a library"
    monkeypatch.setattr("fastloop.sweep.early_check.reason_against", lambda *_: reason)
    run = SuiteRun(scope="full", folder=tmp_path)
    found = measure_round._measure(run, replace(WORKLOADS[0], rows=(RAW, SPDL)))
    first = ("a result", "") if runs else (None, "unsupported: it needs a library")
    assert [(each.result, each.reason) for each in found.rows] == [first, (None, "left out")]
    assert [each.row for each in found.rows] == [RAW, SPDL]


def test_a_loader_that_is_named_twice_is_one_row(tmp_path):
    run = SuiteRun(scope="full", folder=tmp_path, loaders=("raw", "spdl", "raw"))
    assert run.loader_names == ("raw", "spdl")


@pytest.mark.parametrize("text", ["/a/b", "/a b/c,d", "/a[1]/{x}", "/it's/a=b", "/müller"])
def test_any_folder_is_one_value_of_the_command_line(text):
    override = OverridesParser.create().parse_override(f"resume={quote(text)}")
    assert override.value() == text


def test_the_file_names_the_packages_that_a_loader_has_of_its_own(tmp_path):
    main = describe_environment(LAUNCHER)
    own = main | {"versions": main["versions"] | {"numpy": "2.1.3", "nvidia-dali": "2.0"}}
    rows = [
        MeasuredRow(row=SuiteRow(loader="raw"), reason="", result=save_result(tmp_path, "a")),
        MeasuredRow(
            row=SuiteRow(loader="dali"),
            reason="",
            result=save_result(tmp_path, "b", environment=own),
        ),
        MeasuredRow(row=SuiteRow(loader="lance"), reason="left out"),
    ]
    measured = MeasuredWorkload(workload=WORKLOADS[0], overrides=(), rows=rows)
    versions = build_suite_file(SuiteRun(scope="full", folder=tmp_path), "a", [measured]).versions
    added = {"numpy of dali": "2.1.3", "nvidia-dali of dali": "2.0"}
    assert versions == describe_machine()["versions"] | added


def test_of_two_rows_with_different_data_the_first_keeps_its_rank(tmp_path):
    rows = [
        MeasuredRow(
            row=SuiteRow(loader=name),
            reason="",
            result=save_result(tmp_path, name, fingerprint=name, content=name),
        )
        for name in ("raw", "spdl")
    ]
    measured = MeasuredWorkload(workload=WORKLOADS[0], overrides=(), rows=rows)
    cells = build_suite_file(SuiteRun(scope="full", folder=tmp_path), "a", [measured]).cells
    assert [each.unranked_reason for each in cells] == ["", OTHER_DATA]
