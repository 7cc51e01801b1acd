"""Measure a round of the suite, by an ordinary sweep for each workload.

The round's folder keeps the sweeps, so an interrupted round can be resumed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.config.catalogue import options_of, options_with_store
from fastloop.config.command_line import quote
from fastloop.config.compose import compose_requests, usage_errors
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load_result
from fastloop.core.text import first_line, printable
from fastloop.core.types import UsageError
from fastloop.suite.workloads import (
    WORKLOADS,
    Scope,
    SuiteRow,
    SuiteWorkload,
    overrides_of,
    reason_to_leave_out,
    rows_of,
)
from fastloop.sweep.job_identity import config_hash

if TYPE_CHECKING:
    from fastloop.sweep.request import JobRequest

FINAL_STATUSES = ("FINISHED", "FAILED")
"""Statuses of jobs that are not measured again."""


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """A command that measures workloads, each by a sweep of its own."""

    scope: Scope
    """The effort: quick, full or claims; see OF_SCOPE in workloads.py."""
    folder: Path
    """The folder of the sweeps."""
    workloads: tuple[SuiteWorkload, ...] = WORKLOADS
    loaders: tuple[str, ...] = ()
    """Names of the loaders to measure; empty: every loader that there is."""
    changes: tuple[str, ...] = ()
    """Overrides of this command, such as wait=true."""
    all_workloads: tuple[SuiteWorkload, ...] = WORKLOADS
    """The workloads of a complete run."""

    @property
    def is_whole(self) -> bool:
        """True if the command measures all loaders and all workloads."""
        return not self.loaders and self.workloads == self.all_workloads

    @property
    def loader_names(self) -> tuple[str, ...]:
        """The loaders to measure, each once; raises UsageError for one that does not exist."""
        every = options_of("loader")
        for name in self.loaders:
            if name not in every:
                raise UsageError(f"loaders={name}: allowed: {', '.join(every)}")
        return tuple(dict.fromkeys(self.loaders)) or tuple(every)


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """A row of a workload, with its result once it is measured."""

    row: SuiteRow
    """The loader with its settings."""
    reason: str
    """The reason why the row is left out; empty if it is measured."""
    result: Result | None = None
    """The result; None if the row is not measured yet, or was left out."""


@dataclass(frozen=True, kw_only=True)
class MeasuredWorkload:
    """A workload with the result of each of its rows."""

    workload: SuiteWorkload
    overrides: tuple[str, ...]
    """The overrides of the workload in the scope that was measured."""
    rows: list[MeasuredRow] = field(default_factory=list)


def measure_workloads(run: SuiteRun) -> Iterator[MeasuredWorkload]:
    """Measure each workload by its own sweep, and yield it.

    A workload that is complete in the folder is not measured again, and an interrupted one is
    resumed. Raises UsageError if nothing could be measured, after the sweep has printed the reason.
    """
    plans = [(each, _plan(run, each)) for each in run.workloads]
    for workload, rows in plans:
        yield _measure(run, workload, rows)


def _plan(run: SuiteRun, workload: SuiteWorkload) -> list[MeasuredRow]:
    """The rows of the workload, not measured yet."""
    with_store = options_with_store()
    return [
        MeasuredRow(row=row, reason=reason_to_leave_out(workload, row, run.scope, with_store))
        for row in rows_of(workload, run.loader_names)
    ]


def _measure(
    run: SuiteRun, workload: SuiteWorkload, rows: Sequence[MeasuredRow]
) -> MeasuredWorkload:
    """Measure these rows of a workload, and return the workload with the results.

    A row that can't be measured has a reason in place of a result.
    """
    folder = run.folder / workload.name
    requests = _requests(run, workload, [each.row for each in rows if not each.reason], folder)
    unsupported = _reasons_if_none_runs(requests)
    results: dict[str, Result] = {}
    if not unsupported:
        results = _measure_requests(workload, [*requests.values()], folder)
    measured = []
    for each in rows:
        if each.reason:
            measured.append(each)
            continue
        result = results.get(config_hash(requests[each.row]))
        measured.append(replace(each, reason=unsupported.get(each.row, ""), result=result))
    quick = workload.quick if run.scope == "quick" else ()
    return MeasuredWorkload(
        workload=workload, overrides=(*workload.overrides, *quick), rows=measured
    )


def _reasons_if_none_runs(requests: Mapping[SuiteRow, JobRequest]) -> dict[SuiteRow, str]:
    """Row -> the reason why its job can't run on this machine; empty if any of the jobs can."""
    from fastloop.sweep.early_check import UNSUPPORTED, reason_against

    # A sweep in which no job can run ends without a result, and would end the suite.
    reasons = {}
    for row, request in requests.items():
        if not (reason := reason_against(request.job, request.launcher)):
            return {}
        reasons[row] = f"{UNSUPPORTED}{printable(first_line(reason))}"
    return reasons


def _measure_requests(
    workload: SuiteWorkload, requests: Sequence[JobRequest], folder: Path
) -> dict[str, Result]:
    """Measure the requests that have no final result in the folder.

    Returns hash of the configuration -> final result, see `_final_results`. Raises UsageError if
    nothing could be measured.
    """
    from fastloop.processes.signals import exit_if_signalled
    from fastloop.sweep.measure import measure

    found = _final_results(requests, folder)
    if not {config_hash(each) for each in requests} <= found.keys():
        print(f"\n{workload.name}: {workload.title}", flush=True)
        measure(requests)
        exit_if_signalled()
        found = _final_results(requests, folder)
    if requests and not found:
        raise UsageError(f"{workload.name}: nothing was measured, for the reason above")
    return found


def _requests(
    run: SuiteRun, workload: SuiteWorkload, rows: Sequence[SuiteRow], folder: Path
) -> dict[SuiteRow, JobRequest]:
    """The request of each row's job.

    If the workload's folder has a result of one of these jobs, the requests resume the sweep in
    that folder. Otherwise the jobs get new folders, and earlier results stay in theirs.
    """
    in_folder = {result.tags.get("config_hash") for result in _results(folder)}
    if not in_folder:
        return _compose(run, workload, rows, folder, run.changes)
    # A job that failed is not run again: the suite reports its reason.
    changes = (*run.changes, f"resume={quote(str(folder))}", "retry_failed=false")
    requests = _compose(run, workload, rows, folder, changes)
    if not in_folder.isdisjoint(map(config_hash, requests.values())):
        return requests
    # The folder has only other jobs, such as those of other loaders, which keep their folders.
    requests = _compose(run, workload, rows, folder, run.changes)
    return {
        row: replace(request, folder=folder / f"{number}-{os.getpid()}")
        for number, (row, request) in enumerate(requests.items())
    }


def _compose(
    run: SuiteRun,
    workload: SuiteWorkload,
    rows: Sequence[SuiteRow],
    folder: Path,
    changes: Sequence[str],
) -> dict[SuiteRow, JobRequest]:
    """Compose the request of each row's job with these changes.

    Raises UsageError for a wrong override.
    """
    jobs = [overrides_of(workload, row, run.scope, changes) for row in rows]
    with usage_errors():
        requests = compose_requests(jobs, folder) if jobs else []
    return dict(zip(rows, requests, strict=True))


def _final_results(requests: Sequence[JobRequest], folder: Path) -> dict[str, Result]:
    """Hash of the configuration -> the final result in the folder, for each request that has one.

    A final result need not be measured again. A result of other code, of other versions or of fewer
    trials is not final.
    """
    from fastloop.sweep.environment_facts import describe_environment

    results = {result.tags.get("config_hash"): result for result in _results(folder)}
    final = {}
    for request in requests:
        key = config_hash(request)
        here = describe_environment(request.launcher)
        result = results.get(key)
        if result is None or result.status not in FINAL_STATUSES:
            continue
        there = result.environment
        trials = request.job.trials
        is_same = all(there.get(name) == here[name] for name in ("code", "versions", "python"))
        # A job that was asked for the same number of trials may have fewer, because the setting
        # `seconds` limits the time of the rounds.
        has_all = result.status == "FAILED" or result.params.get("trials") == trials
        has_all = has_all or len(result.trials) >= request.job.most_trials
        # An unsupported job may end before its environment is described, which is empty then.
        if has_all and (is_same or not there):
            final[key] = result
    return final


def _results(folder: Path) -> list[Result]:
    """All results of the folder."""
    # load_results is not used: of two jobs with the same name, such as those of different data, it
    # leaves out one.
    return [load_result(path, "suite") for path in sorted(folder.glob(f"*/{RESULT_FILE}"))]
