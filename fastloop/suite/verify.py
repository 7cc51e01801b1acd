"""Verification of a suite's file: figures are recomputed from the windows, seals compared."""

from __future__ import annotations

import math
from typing import Any

from fastloop.core.types import UsageError
from fastloop.suite.suite_file import SuiteFile, broken_seals, values_of, with_figures

TOLERANCE = 1e-9
"""Relative difference of a figure that other versions of numpy may cause."""


def find_problems(document: SuiteFile) -> list[str]:
    """A line for each field that was altered or does not follow from the windows; none if the file
    is as it was written. The line begins with the field's path."""
    problems = [*broken_seals(document), *_contradictions(document)]
    try:
        again = with_figures(document)
    # A window that ends before it begins, or lasts for ever, has no figures.
    except (ValueError, ArithmeticError, LookupError) as error:
        return [*problems, f"cells: figures can't be recomputed: {error}"]
    for given, computed in zip(document.workloads, again.workloads, strict=True):
        if given.undetermined != computed.undetermined:
            path = f"workloads.{given.name}.undetermined"
            problems.append(_line(path, given.undetermined, computed.undetermined))
    for given, computed in zip(document.cells, again.cells, strict=True):
        path = f"cells[{given.workload} {given.label}].figures"
        if given.figures is None or computed.figures is None:
            if given.figures != computed.figures:
                problems.append(_line(path, given.figures, computed.figures))
            continue
        expected = values_of(computed.figures, ())
        for name, value in values_of(given.figures, ()).items():
            if not _agree(value, expected[name]):
                problems.append(_line(f"{path}.{name}", value, expected[name]))
    return problems


def check_file(document: SuiteFile, name: str) -> None:
    """Raise UsageError, with the first altered field, unless the file is as it was written."""
    if problems := find_problems(document):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UsageError(f"{name}: {problems[0]}{more}")


def _contradictions(document: SuiteFile) -> list[str]:
    names = [each.name for each in document.workloads]
    seen, lines = set[tuple[str, str]](), []
    for cell in document.cells:
        path = f"cells[{cell.workload} {cell.label}]"
        if cell.workload not in names:
            lines.append(f"{path}.workload: it is none of workloads")
        if (cell.workload, cell.label) in seen:
            lines.append(f"{path}.label: there is another cell of that name")
        if bool(cell.null_reason) == bool(cell.windows):
            lines.append(f"{path}.null_reason: a cell has windows, or a reason for having none")
        seen.add((cell.workload, cell.label))
    return lines


def _agree(given: Any, computed: Any) -> bool:
    if isinstance(given, float) and isinstance(computed, float):
        return math.isclose(given, computed, rel_tol=TOLERANCE)
    if isinstance(given, list) and isinstance(computed, list):
        pairs = len(given) == len(computed) and zip(given, computed, strict=True)
        return bool(pairs is not False and all(_agree(*pair) for pair in pairs))
    return given == computed


def _line(path: str, given: Any, computed: Any) -> str:
    return f"{path}: {given} in the file, {computed} recomputed from the windows"
