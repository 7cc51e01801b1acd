"""Files of the suite with known windows."""

from __future__ import annotations

from dataclasses import replace

from fastloop.core.result import Measurement
from fastloop.suite.claims import Claim
from fastloop.suite.suite_file import Cell, SuiteFile, WorkloadRecord, seal, with_figures

NOW_MS = 1_800_000_000_000
REASON = "unsupported: <b>needs</b> a library"
FAST, EQUAL, SLOW = [1.0, 1.01, 1.0, 1.02, 1.0], [1.0, 1.01, 1.01, 1.0, 1.0], [3.0, 3.1, 3, 3, 3]
"""Seconds of five windows: those of FAST and EQUAL are tied."""


def measured_cell(label: str, seconds: list[float], **changes) -> Cell:
    windows = {
        number: Measurement(
            start_ns=1000,
            stop_ns=1000 + int(each * 1e9),
            epochs=1,
            samples=500,
            limit_samples_per_s=9000.0,
        )
        for number, each in enumerate(seconds)
    }
    cell = Cell(
        workload="small_rows",
        label=label,
        loader=label,
        configuration="default",
        overrides=[],
        code=f"fastloop/options/loader/{label}.py",
        cache="warm",
        null_reason="",
        measured_ms=NOW_MS,
        content="ab",
        windows=windows,
        first_batch_s=0.25,
        peak_pss_mib=300.0,
        caveats=["unstable"],
    )
    return replace(cell, **changes)


def null_cell(label: str) -> Cell:
    empty = {"windows": {}, "measured_ms": None, "content": "", "first_batch_s": None}
    return measured_cell(label, [], null_reason=REASON, peak_pss_mib=None, **empty)


def example() -> SuiteFile:
    """A file of two rows that are tied, a slow one, and one without figures."""
    cells = measured_cell("raw", SLOW), measured_cell("grain", FAST), measured_cell("spdl", EQUAL)
    return document_of(*cells, null_cell("ffcv"))


def document_of(*cells: Cell) -> SuiteFile:
    workload = WorkloadRecord(
        name="small_rows",
        title="Small rows",
        overrides=["dataset=mydataset"],
        samples=500,
        sample_nbytes=3136,
        undetermined="",
    )
    document = SuiteFile(
        schema=1,
        suite="1.0",
        round="2026-11",
        scope="full",
        complete=True,
        machine={"cpu": "a processor", "cores_usable": 2, "python": "3.11"},
        versions={"torch": "2.9", "numpy": None},
        commit="0123456789abcdef",
        code="cd",
        workloads=[workload],
        cells=list(cells),
    )
    return seal(with_figures(document))


def claimed_file(claim: Claim, slow: list[float], fast: list[float]) -> SuiteFile:
    document = document_of(
        measured_cell(claim.slow.label, slow, workload=claim.name),
        measured_cell(claim.fast.label, fast, workload=claim.name),
    )
    return replace(document, scope="claims")
