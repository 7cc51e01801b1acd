"""Measure a round of the suite, by an ordinary sweep for each workload: `measure_workloads`.

The folder of each workload keeps its sweep, so an interrupted round can be resumed. A row is a
loader with its settings. If the folder has a final result of the row, this result counts, and the
row is not measured again. A result is not final if it comes from other code, from other versions or
from fewer trials than are now asked for.
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
"""Statuses of jobs that have ended without an interruption."""


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

    def folder_of(self, workload: SuiteWorkload) -> Path:
        """The folder of the workload's sweep."""
        return self.folder / workload.name


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """A row of a workload with its result, or with the reason why it was not measured."""

    row: SuiteRow
    """The loader with its settings."""
    reason: str
    """The reason why the row was not measured; empty if its job could run."""
    result: Result | None = None
    """The final result; None if the row was not measured, or if its sweep ended too early."""


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
    for workload in run.workloads:
        yield _measure(run, workload)


def _measure(run: SuiteRun, workload: SuiteWorkload) -> MeasuredWorkload:
    """Measure the rows of a workload that can be measured, and return all rows."""
    rows = rows_of(workload, run.loader_names)
    reasons = _reasons_to_leave_out(run, workload, rows)
    requests = _requests(run, workload, [row for row in rows if row not in reasons])
    unsupported = _reasons_if_none_runs(requests)
    results = {} if unsupported else _measure_requests(run, workload, requests)
    reasons |= unsupported
    return MeasuredWorkload(
        workload=workload,
        overrides=workload.overrides_in(run.scope),
        rows=[
            MeasuredRow(row=row, reason=reasons.get(row, ""), result=results.get(row))
            for row in rows
        ],
    )


def _reasons_to_leave_out(
    run: SuiteRun, workload: SuiteWorkload, rows: Sequence[SuiteRow]
) -> dict[SuiteRow, str]:
    """Row -> the reason why the suite leaves it out, for the rows that are left out."""
    with_store = options_with_store()
    reasons = {row: reason_to_leave_out(workload, row, run.scope, with_store) for row in rows}
    return {row: reason for row, reason in reasons.items() if reason}


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
    run: SuiteRun, workload: SuiteWorkload, requests: Mapping[SuiteRow, JobRequest]
) -> dict[SuiteRow, Result]:
    """Measure the requests by a sweep, unless the workload's folder has all final results.

    Returns row -> final result, for each row that has one. Raises UsageError if nothing could be
    measured.
    """
    from fastloop.processes.signals import exit_if_signalled
    from fastloop.sweep.measure import measure

    folder = run.folder_of(workload)
    found = _final_results(requests, folder)
    if len(found) < len(requests):
        print(f"\n{workload.name}: {workload.title}", flush=True)
        measure([*requests.values()])
        exit_if_signalled()
        found = _final_results(requests, folder)
    if requests and not found:
        raise UsageError(f"{workload.name}: nothing was measured, for the reason above")
    return found


def _requests(
    run: SuiteRun, workload: SuiteWorkload, rows: Sequence[SuiteRow]
) -> dict[SuiteRow, JobRequest]:
    """The request of each row's job.

    If the workload's folder has a result of one of these jobs, the requests resume the sweep in
    that folder. Otherwise the jobs get new folders, and earlier results stay in theirs.
    """
    folder = run.folder_of(workload)
    earlier = {result.tags.get("config_hash") for result in _results(folder)}
    if not earlier:
        return _compose(run, workload, rows, run.changes)
    # A job that failed is not run again: the suite reports its reason.
    resuming = (*run.changes, f"resume={quote(str(folder))}", "retry_failed=false")
    requests = _compose(run, workload, rows, resuming)
    if not earlier.isdisjoint(map(config_hash, requests.values())):
        return requests
    # The folder has only other jobs, such as those of other loaders, which keep their folders.
    requests = _compose(run, workload, rows, run.changes)
    return {
        row: replace(request, folder=folder / f"{number}-{os.getpid()}")
        for number, (row, request) in enumerate(requests.items())
    }


def _compose(
    run: SuiteRun, workload: SuiteWorkload, rows: Sequence[SuiteRow], changes: Sequence[str]
) -> dict[SuiteRow, JobRequest]:
    """Compose the request of each row's job with these changes.

    Raises UsageError for a wrong override.
    """
    jobs = [overrides_of(workload, row, run.scope, changes) for row in rows]
    with usage_errors():
        requests = compose_requests(jobs, run.folder_of(workload)) if jobs else []
    return dict(zip(rows, requests, strict=True))


def _final_results(requests: Mapping[SuiteRow, JobRequest], folder: Path) -> dict[SuiteRow, Result]:
    """Row -> the final result in the folder, for each row that has one."""
    results = {result.tags.get("config_hash"): result for result in _results(folder)}
    found = {row: results.get(config_hash(request)) for row, request in requests.items()}
    return {
        row: result for row, result in found.items() if result and _is_final(result, requests[row])
    }


def _is_final(result: Result, request: JobRequest) -> bool:
    """True if the request's job, of which this is a result, need not be measured again."""
    if result.status not in FINAL_STATUSES:
        return False
    # A job that was asked for the same number of trials may have fewer, because the setting
    # `seconds` limits the time of the rounds.
    has_all_trials = (
        result.status == "FAILED"
        or result.params.get("trials") == request.job.trials
        or len(result.trials) >= request.job.most_trials
    )
    return has_all_trials and _is_of_present_code(result, request)


def _is_of_present_code(result: Result, request: JobRequest) -> bool:
    """True if the result comes from the present code, with the present versions of packages."""
    from fastloop.sweep.environment_facts import describe_environment

    # An unsupported job may end before its environment is described, which is empty then.
    if not result.environment:
        return True
    here = describe_environment(request.launcher)
    return all(
        result.environment.get(each) == here[each] for each in ("code", "versions", "python")
    )


def _results(folder: Path) -> list[Result]:
    """All results of the folder."""
    # load_results is not used: of two jobs with the same name, such as those of different data, it
    # leaves out one.
    return [load_result(path, "suite") for path in sorted(folder.glob(f"*/{RESULT_FILE}"))]
