"""A round of the suite: one ordinary sweep a workload, kept in a folder, and their cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fastloop.config.catalogue import options_of, options_with_store
from fastloop.config.compose import compose_requests, usage_errors
from fastloop.config.experiments import register_experiments
from fastloop.core.result import Result
from fastloop.core.result_io import RESULT_FILE, load_results
from fastloop.core.types import UsageError
from fastloop.suite.workloads import (
    WORKLOADS,
    Row,
    Scope,
    Workload,
    overrides_of,
    reason_to_leave_out,
    rows_of,
)

if TYPE_CHECKING:
    from fastloop.sweep.request import JobRequest

FINAL = ("FINISHED", "FAILED")


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """A command to measure workloads; the folder holds a sweep for each."""

    scope: Scope
    folder: Path
    workloads: tuple[Workload, ...] = WORKLOADS
    loaders: tuple[str, ...] = ()
    """Empty: every loader that there is."""
    changes: tuple[str, ...] = ()
    """Overrides of this command, such as wait=true."""
    all_workloads: tuple[Workload, ...] = WORKLOADS
    """What a complete run has."""

    @property
    def is_whole(self) -> bool:
        """True if nothing is left out."""
        return not self.loaders and self.workloads == self.all_workloads

    @property
    def chosen_loaders(self) -> tuple[str, ...]:
        """The loaders to measure; raises UsageError for one that does not exist."""
        every = options_of("loader")
        for name in self.loaders:
            if name not in every:
                raise UsageError(f"loaders={name}: allowed: {', '.join(every)}")
        return self.loaders or tuple(every)


@dataclass(frozen=True, kw_only=True)
class MeasuredWorkload:
    """A workload with the result of each of its rows."""

    workload: Workload
    overrides: tuple[str, ...]
    results: list[tuple[Row, Result | None, str]] = field(default_factory=list)
    """The row, its result, and the reason for which it was left out."""


def measure_workloads(run: SuiteRun) -> Iterator[MeasuredWorkload]:
    """Measure each workload by a sweep of its own, and yield it; a workload that is complete in the
    folder is not measured again, and one that was interrupted goes on.

    Raises UsageError if nothing could be measured, after the sweep has printed the reason.
    """
    plans = [(each, _plan(run, each)) for each in run.workloads]
    for workload, rows in plans:
        yield _measure(run, workload, rows)


def _plan(run: SuiteRun, workload: Workload) -> list[tuple[Row, str]]:
    """The rows of the workload, each with the reason for which it is left out."""
    with_store = options_with_store()
    return [
        (row, reason_to_leave_out(workload, row, run.scope, with_store))
        for row in rows_of(workload, run.chosen_loaders)
    ]


def _measure(run: SuiteRun, workload: Workload, rows: list[tuple[Row, str]]) -> MeasuredWorkload:
    from fastloop.processes.lifecycle import exit_if_signalled
    from fastloop.sweep.measure import measure
    from fastloop.sweep.request import config_hash

    folder = run.folder / workload.name
    measured = [row for row, reason in rows if not reason]
    requests = _requests(run, workload, measured, folder)
    if requests and not _is_complete(requests, folder):
        print(f"\n{workload.name}: {workload.title}", flush=True)
        measure(requests)
        exit_if_signalled()
    if requests and not any(folder.glob(f"*/{RESULT_FILE}")):
        raise UsageError(f"{workload.name}: nothing was measured, for the reason above")
    found = {result.tags.get("config_hash"): result for result in _results(folder)}
    by_row = {
        row.label: found.get(config_hash(request))
        for row, request in zip(measured, requests, strict=True)
    }
    return MeasuredWorkload(
        workload=workload,
        overrides=(*workload.overrides, *(workload.quick if run.scope == "quick" else ())),
        results=[(row, by_row.get(row.label), reason) for row, reason in rows],
    )


def _requests(
    run: SuiteRun, workload: Workload, rows: Sequence[Row], folder: Path
) -> list[JobRequest]:
    changes = run.changes
    if any(folder.glob(f"*/{RESULT_FILE}")):
        # The sweep goes on in its folder. A job that failed has failed: the suite tells the reason.
        changes = (*changes, f"resume={folder}", "retry_failed=false")
    jobs = [overrides_of(workload, row, run.scope, changes) for row in rows]
    # The transform of bytes_to_floats is one that experiments/peers adds.
    register_experiments()
    with usage_errors():
        return compose_requests(jobs, folder) if jobs else []


def _is_complete(requests: Sequence[JobRequest], folder: Path) -> bool:
    """True if each request has its final result in the folder, of this code and these versions."""
    from fastloop.core.machine import describe_machine
    from fastloop.sweep.request import config_hash

    here, final = describe_machine(), set[str | None]()
    for result in _results(folder):
        there = result.environment
        is_same = all(there.get(name) == here[name] for name in ("code", "versions", "python"))
        # A job that is unsupported ends before its environment is described.
        if result.status in FINAL and (is_same or not there):
            final.add(result.tags.get("config_hash"))
    return all(config_hash(request) in final for request in requests)


def _results(folder: Path) -> list[Result]:
    return load_results(folder, "suite") if any(folder.glob(f"*/{RESULT_FILE}")) else []
