"""A round of the suite: one ordinary sweep a workload, kept in a folder, and their file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastloop.config.catalogue import options_of, options_with_store
from fastloop.config.command_line import quote
from fastloop.config.compose import compose_requests, usage_errors
from fastloop.config.experiments import register_experiments
from fastloop.core.machine import describe_machine
from fastloop.core.result import Result, measurements
from fastloop.core.result_io import RESULT_FILE, load_result
from fastloop.core.text import printable
from fastloop.core.types import UsageError
from fastloop.reporting.comparable import UNRANKED, partition
from fastloop.suite.suite_file import SCHEMA, Cell, SuiteFile, WorkloadRecord, seal, with_figures
from fastloop.suite.workloads import (
    SUITE,
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

FINAL = ("FINISHED", "FAILED")

BENCHMARK = "traversal"
PUBLISHED = (
    "platform",
    "python",
    "cpu",
    "cores_usable",
    "cores",
    "cgroup_quota",
    "memory_gib",
    "gpus",
)
"""Facts about the machine that the file has. The machine's name in the network is left out."""
NOT_MEASURED = "it was not measured with this code: the sweep ended before, or it no longer runs"
OTHER_DATA = "it delivers other data than most loaders of this workload"


@dataclass(frozen=True, kw_only=True)
class SuiteRun:
    """A command to measure workloads; the folder holds a sweep for each."""

    scope: Scope
    folder: Path
    workloads: tuple[SuiteWorkload, ...] = WORKLOADS
    loaders: tuple[str, ...] = ()
    """Empty: every loader that there is."""
    changes: tuple[str, ...] = ()
    """Overrides of this command, such as wait=true."""
    all_workloads: tuple[SuiteWorkload, ...] = WORKLOADS
    """The workloads of a complete run."""

    @property
    def is_whole(self) -> bool:
        """True if nothing is left out."""
        return not self.loaders and self.workloads == self.all_workloads

    @property
    def loader_names(self) -> tuple[str, ...]:
        """The loaders to measure; raises UsageError for one that does not exist."""
        every = options_of("loader")
        for name in self.loaders:
            if name not in every:
                raise UsageError(f"loaders={name}: allowed: {', '.join(every)}")
        return self.loaders or tuple(every)


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """A row of a workload, with its result."""

    row: SuiteRow
    reason: str
    """The reason for which it is left out; empty: it is measured."""
    result: Result | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredWorkload:
    """A workload with the result of each of its rows."""

    workload: SuiteWorkload
    overrides: tuple[str, ...]
    rows: list[MeasuredRow] = field(default_factory=list)


def measure_workloads(run: SuiteRun) -> Iterator[MeasuredWorkload]:
    """Measure each workload by its own sweep, and yield it; a workload that is complete in the
    folder is not measured again, and one that was interrupted goes on.

    Raises UsageError if nothing could be measured, after the sweep has printed the reason.
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
    folder = run.folder / workload.name
    measured = [each.row for each in rows if not each.reason]
    requests = _requests(run, workload, measured, folder)
    unsupported = _reasons_if_none_runs(requests)
    found: dict[str, Result] = {}
    if not unsupported:
        found = _measure_requests(workload, requests, folder)
    by_row = {
        row.label: found.get(config_hash(request))
        for row, request in zip(measured, requests, strict=True)
    }
    why = dict(zip(measured, unsupported, strict=True)) if unsupported else {}
    return MeasuredWorkload(
        workload=workload,
        overrides=(*workload.overrides, *(workload.quick if run.scope == "quick" else ())),
        rows=[
            replace(
                each,
                reason=each.reason or why.get(each.row, ""),
                result=by_row.get(each.row.label),
            )
            for each in rows
        ],
    )


def _reasons_if_none_runs(requests: Sequence[JobRequest]) -> list[str]:
    """The reason of each request if none of them can run here; empty if one can."""
    from fastloop.sweep.early_check import UNSUPPORTED, reason_against

    # A sweep of such jobs alone ends without a result, and would end the suite.
    reasons = []
    for request in requests:
        if not (reason := reason_against(request.job, request.launcher)):
            return []
        reasons.append(f"{UNSUPPORTED}{printable(reason.splitlines()[0])}")
    return reasons


def _measure_requests(
    workload: SuiteWorkload, requests: Sequence[JobRequest], folder: Path
) -> dict[str, Result]:
    """The results by the hash of the configuration. Raises UsageError for none."""
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
) -> list[JobRequest]:
    known = {result.tags.get("config_hash") for result in _results(folder)}
    if not known:
        return _compose(run, workload, rows, folder, run.changes)
    # The sweep goes on in its folder. A job that failed has failed: the suite tells the reason.
    resume = f"resume={quote(str(folder))}"
    changes = (*run.changes, resume, "retry_failed=false")
    requests = _compose(run, workload, rows, folder, changes)
    if not known.isdisjoint(map(config_hash, requests)):
        return requests
    # The folder has other jobs alone, such as those of other loaders. They keep their folders.
    requests = _compose(run, workload, rows, folder, run.changes)
    return [
        replace(each, folder=folder / f"{number}-{os.getpid()}")
        for number, each in enumerate(requests)
    ]


def _compose(
    run: SuiteRun,
    workload: SuiteWorkload,
    rows: Sequence[SuiteRow],
    folder: Path,
    changes: Sequence[str],
) -> list[JobRequest]:
    jobs = [overrides_of(workload, row, run.scope, changes) for row in rows]
    # The transform of bytes_to_floats is one that experiments/peers adds.
    register_experiments()
    with usage_errors():
        return compose_requests(jobs, folder) if jobs else []


def _final_results(requests: Sequence[JobRequest], folder: Path) -> dict[str, Result]:
    """The final results of the requests in the folder, by the hash of the configuration; without
    those of other code, other versions or fewer trials."""
    from fastloop.sweep.prepare_stage import describe_environment

    results = {result.tags.get("config_hash"): result for result in _results(folder)}
    final = {}
    for request in requests:
        key, here = config_hash(request), describe_environment(request.launcher)
        result = results.get(key)
        if result is None or result.status not in FINAL:
            continue
        there, trials = result.environment, request.job.trials
        is_same = all(there.get(name) == here[name] for name in ("code", "versions", "python"))
        # `seconds` may have ended the rounds before the last trial that was asked for.
        has_all = result.status == "FAILED" or result.params.get("trials") == trials
        has_all = has_all or len(result.trials) >= request.job.most_trials
        # A job that is unsupported may end before its environment is described.
        if has_all and (is_same or not there):
            final[key] = result
    return final


def _results(folder: Path) -> list[Result]:
    # Not by load_results, which leaves out a job of the same name, such as one of other data.
    return [load_result(path, "suite") for path in sorted(folder.glob(f"*/{RESULT_FILE}"))]


def suite_file(run: SuiteRun, round_name: str, measured: Sequence[MeasuredWorkload]) -> SuiteFile:
    """The file of these workloads, with its figures and seals."""
    here = describe_machine()
    cells, workloads = [], []
    for each in measured:
        cells += _cells(each)
        workloads.append(_record(each))
    document = SuiteFile(
        schema=SCHEMA,
        suite=SUITE,
        round=round_name,
        scope=run.scope,
        complete=run.is_whole and len(measured) == len(run.workloads),
        machine={name: here[name] for name in PUBLISHED},
        versions=here["versions"],
        commit=here["git_commit"],
        code=here["code"],
        workloads=workloads,
        cells=cells,
    )
    return seal(with_figures(document))


def machine_name() -> str:
    """A name of the machine for files: its processor and its number of cores."""
    here = describe_machine()
    words = re.sub(r"\(.*?\)|@.*|[^\w ]", " ", here["cpu"]).lower().split()
    dull = {"cpu", "processor", "with", "r", "tm"}
    return "-".join(
        [*(word for word in words if word not in dull), f"{here['cores_usable']}-cores"]
    )


def _record(measured: MeasuredWorkload) -> WorkloadRecord:
    results = [each.result for each in measured.rows if each.result and each.result.num_samples]
    workload = measured.workload
    return WorkloadRecord(
        name=workload.name,
        title=workload.title,
        overrides=list(measured.overrides),
        samples=results[0].num_samples if results else None,
        sample_nbytes=results[0].sample_nbytes if results else None,
        undetermined="",
    )


def _cells(measured: MeasuredWorkload) -> list[Cell]:
    results = [each.result for each in measured.rows if each.result]
    finished = [result for result in results if result.status == "FINISHED"]
    groups = sorted(partition(finished), key=len)
    ranked = groups[-1] if groups else []
    return [
        _cell(measured, each, is_comparable=any(each.result is result for result in ranked))
        for each in measured.rows
    ]


def _cell(
    measured: MeasuredWorkload,
    measured_row: MeasuredRow,
    *,
    is_comparable: bool,
) -> Cell:
    row, result = measured_row.row, measured_row.result
    known: dict[str, Any] = {"null_reason": measured_row.reason or NOT_MEASURED}
    if result is not None and not measured_row.reason:
        known = _fields_of(result, is_comparable)
    overrides = (*measured.overrides, *row.overrides)
    caches = [each.partition("=")[2] for each in overrides if each.startswith("cache=")]
    return Cell(
        workload=measured.workload.name,
        label=row.label,
        loader=row.loader,
        configuration=row.configuration,
        overrides=list(row.overrides),
        code=f"fastloop/options/loader/{row.loader}.py",
        cache=caches[-1] if caches else "warm",
        **known,
    )


def _fields_of(result: Result, is_comparable: bool) -> dict[str, Any]:
    """The fields of a cell that come from its result."""
    if result.status != "FINISHED" or not measurements(result, BENCHMARK):
        reason = result.status_reason or f"the job is {result.status.lower()}"
        return {"null_reason": printable(reason.splitlines()[0])}
    marks = [reason for tag, reason in UNRANKED.items() if tag in result.tags]
    pass_ = result.attribution.get(BENCHMARK)
    resources = pass_.resources if pass_ else None
    return {
        "null_reason": "",
        "unranked_reason": marks[0] if marks else "" if is_comparable else OTHER_DATA,
        "measured_ms": max(trial.started_ms for trial in result.trials),
        "content": result.content,
        "windows": {
            trial.number: trial.benchmarks[BENCHMARK]
            for trial in sorted(result.trials, key=lambda trial: trial.number)
            if BENCHMARK in trial.benchmarks
        },
        "shuffling": result.shadow.shuffling if result.shadow else None,
        "first_batch_s": pass_.first_batch_s if pass_ else None,
        "peak_pss_mib": resources.peak_pss_mib if resources else None,
        "caveats": [printable(each) for each in result.caveats],
    }
