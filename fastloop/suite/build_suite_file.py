"""Build the file of a suite's round, a `SuiteFile`, from the results of its measured jobs.

`fastloop suite` measures a round: all or some workloads on one machine. It writes this file after
each workload. A row is one loader with one configuration in a workload. A cell is the entry of a
row in the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastloop.core.machine import describe_machine
from fastloop.core.result import Result, measurements
from fastloop.core.text import first_line, printable
from fastloop.reporting.comparable import UNRANKED, partition
from fastloop.suite.measure_round import MeasuredRow, MeasuredWorkload, SuiteRun
from fastloop.suite.suite_file import SCHEMA, Cell, SuiteFile, WorkloadRecord, seal, with_figures
from fastloop.suite.workloads import SUITE
from fastloop.sweep.environment_facts import ENGINE

BENCHMARK = "traversal"
"""The only benchmark of the suite's jobs."""
PUBLISHED_FACTS = (
    "platform",
    "python",
    "cpu",
    "cores_usable",
    "cores",
    "cgroup_quota",
    "memory_gib",
    "gpus",
)
"""Facts about the machine that the file contains. The machine's host name is left out."""
NOT_MEASURED = "not measured with this code: the sweep ended before, or the job no longer runs"
"""The reason for a cell without a result."""
OTHER_DATA = "it delivers other data than most loaders of this workload"
"""The reason for a cell without a rank. Never change this sentence: files of earlier rounds contain
it, and `suite site` recognizes such rows by this sentence."""


def build_suite_file(
    run: SuiteRun, round_name: str, measured: Sequence[MeasuredWorkload]
) -> SuiteFile:
    """Build the file of the measured workloads, with its figures and seals.

    A seal is a digest of a raw field, which shows if the field was altered. run: the command that
    has measured the workloads. round_name: name of the round.
    """
    here = describe_machine()
    cells = []
    workloads = []
    for each in measured:
        cells += _cells(each)
        workloads.append(_record(each))
    document = SuiteFile(
        schema=SCHEMA,
        suite=SUITE,
        round=round_name,
        scope=run.scope,
        complete=run.is_whole and len(measured) == len(run.workloads),
        machine={name: here[name] for name in PUBLISHED_FACTS},
        versions=here["versions"] | _own_versions(here["versions"], measured),
        commit=here["git_commit"],
        code=here["code"],
        workloads=workloads,
        cells=cells,
    )
    return seal(with_figures(document))


def _own_versions(
    main: Mapping[str, str | None], measured: Sequence[MeasuredWorkload]
) -> dict[str, str]:
    """Versions of packages in loaders' own environments, if they differ from the main environment.

    main: package -> version in the main environment; None: the package is not installed. A key of
    the result names the package and the loader: {"numpy of ffcv": "2.1.3"}.
    """
    return {
        f"{name} of {row.row.loader}": version
        for workload in measured
        for row in workload.rows
        if row.result
        for name, version in row.result.environment.get("versions", {}).items()
        if version and version != main.get(name) and name != ENGINE
    }


def machine_name() -> str:
    """A name of this machine for file names: its processor and its number of usable cores."""
    here = describe_machine()
    words = re.sub(r"\(.*?\)|@.*|[^\w ]", " ", here["cpu"]).lower().split()
    common_words = {"cpu", "processor", "with", "r", "tm"}
    telling = [word for word in words if word not in common_words]
    return "-".join([*telling, f"{here['cores_usable']}-cores"])


def _record(measured: MeasuredWorkload) -> WorkloadRecord:
    """The workload's entry in the file.

    The first result that has a number of samples provides the size of the data.
    """
    results = [each.result for each in measured.rows if each.result and each.result.num_samples]
    workload = measured.workload
    return WorkloadRecord(
        name=workload.name,
        title=workload.title,
        overrides=list(measured.overrides),
        samples=results[0].num_samples if results else None,
        sample_nbytes=results[0].sample_nbytes if results else None,
        # with_figures fills it in.
        undetermined="",
    )


def _cells(measured: MeasuredWorkload) -> list[Cell]:
    """A cell for each row of a workload.

    Only rows of the largest group that delivers the same data are comparable.
    """
    results = [each.result for each in measured.rows if each.result]
    finished = [result for result in results if result.status == "FINISHED"]
    # Of equally large groups, the group with the earliest row counts, because the first row is the
    # reference of the other rows.
    comparable = max(partition(finished), key=len, default=[])
    return [
        _cell(measured, each, is_comparable=any(each.result is result for result in comparable))
        for each in measured.rows
    ]


def _cell(
    measured: MeasuredWorkload,
    measured_row: MeasuredRow,
    *,
    is_comparable: bool,
) -> Cell:
    """The cell of a row.

    is_comparable: True if the row may be ranked together with most loaders of the workload.
    """
    row, result = measured_row.row, measured_row.result
    if result is None or measured_row.reason:
        measured_fields: dict[str, Any] = {"null_reason": measured_row.reason or NOT_MEASURED}
    else:
        measured_fields = _fields_of(result, is_comparable)
    overrides = (*measured.overrides, *row.overrides)
    # If several overrides change a setting, the last one counts.
    caches = [each.partition("=")[2] for each in overrides if each.startswith("cache=")]
    return Cell(
        workload=measured.workload.name,
        label=row.label,
        loader=row.loader,
        configuration=row.configuration,
        overrides=list(row.overrides),
        code=f"fastloop/options/loader/{row.loader}.py",
        cache=caches[-1] if caches else "warm",
        **measured_fields,
    )


def _fields_of(result: Result, is_comparable: bool) -> dict[str, Any]:
    """Name -> value of the fields of a cell that come from its result.

    A window is the timed part of a trial. If the job has not finished or has no windows, the only
    field is null_reason, the reason why the cell has no values.
    """
    if result.status != "FINISHED" or not measurements(result, BENCHMARK):
        reason = result.status_reason or f"the job is {result.status.lower()}"
        return {"null_reason": printable(first_line(reason))}
    reasons = [reason for tag, reason in UNRANKED.items() if tag in result.tags]
    reasons += [] if is_comparable else [OTHER_DATA]
    attribution = result.attribution.get(BENCHMARK)
    resources = attribution.resources if attribution else None
    return {
        "null_reason": "",
        "unranked_reason": reasons[0] if reasons else "",
        "measured_ms": max(trial.started_ms for trial in result.trials),
        "content": result.content,
        "windows": {
            trial.number: trial.benchmarks[BENCHMARK]
            for trial in sorted(result.trials, key=lambda trial: trial.number)
            if BENCHMARK in trial.benchmarks
        },
        "shuffling": result.shadow.shuffling if result.shadow else None,
        "first_batch_s": attribution.first_batch_s if attribution else None,
        "peak_pss_mib": resources.peak_pss_mib if resources else None,
        "caveats": [printable(each) for each in result.caveats],
    }
