"""Check that a suite's file is as it was written.

Each raw field has a seal, a digest by which an alteration shows. The figures are computed again
from the windows, the timed parts of trials. A cell is the entry of one loader with one
configuration in one workload.
"""

from __future__ import annotations

import math
from typing import Any

from fastloop.core.text import printable_line
from fastloop.core.types import UsageError
from fastloop.suite.suite_file import (
    Figures,
    SuiteFile,
    cell_name,
    seals_of_cell,
    seals_of_head,
    values_of,
    with_figures,
)

TOLERANCE = 1e-9
"""Relative difference that is allowed between a figure and its recomputed value. Another version of
numpy may cause such a difference."""


def find_problems(document: SuiteFile) -> list[str]:
    """A line for each field that was altered, contradicts another field, or is a wrong figure.

    A line begins with the path of the field. The list is empty if the file is as it was written.
    """
    problems = [*_broken_seals(document), *_contradictions(document), *_wrong_figures(document)]
    # The file may come from anybody. A terminal would obey control characters in its text.
    return [*map(printable_line, problems)]


def check_file(document: SuiteFile, name: str) -> None:
    """Raise UsageError, with the first problem, unless the file is as it was written.

    name: the name of the file in the message.
    """
    if problems := find_problems(document):
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UsageError(f"{name}: {problems[0]}{more}")


def _wrong_figures(document: SuiteFile) -> list[str]:
    """A line for each figure that does not follow from the windows."""
    problems: list[str] = []
    try:
        again = with_figures(document)
    # An altered window may end before it begins, or last forever. Then no figures can be computed.
    except (ValueError, ArithmeticError, LookupError) as error:
        return [f"cells: figures can't be recomputed: {error}"]
    for given, computed in zip(document.workloads, again.workloads, strict=True):
        if given.undetermined != computed.undetermined:
            path = f"workloads.{given.name}.undetermined"
            problems.append(_line(path, given.undetermined, computed.undetermined))
    for given, computed in zip(document.cells, again.cells, strict=True):
        path = f"cells[{cell_name(given)}].figures"
        problems += _compare_figures(path, given.figures, computed.figures)
    return problems


def _broken_seals(document: SuiteFile) -> list[str]:
    """A line for each field of the file, and of its cells, that does not match its seal."""
    lines = _differences("", document.seals, seals_of_head(document))
    for cell in document.cells:
        lines += _differences(f"cells[{cell_name(cell)}].", cell.seals, seals_of_cell(cell))
    return lines


def _differences(prefix: str, sealed: dict[str, str], found: dict[str, str]) -> list[str]:
    """A line for each path with a seal that is missing, or differs from the seal computed now.

    prefix: text before each path. sealed: path -> seal in the file. found: path -> seal computed
    now.
    """
    paths = dict.fromkeys((*sealed, *found))
    broken = [path for path in paths if sealed.get(path) != found.get(path)]
    return [f"{prefix}{path}: altered, added or removed since it was sealed" for path in broken]


def _compare_figures(path: str, given: Figures | None, computed: Figures | None) -> list[str]:
    """A line for each figure of a cell that differs from the computed one.

    path: of the cell's figures. given, computed: None: the cell has no figures.
    """
    if given is None or computed is None:
        return [] if given == computed else [_line(path, given, computed)]
    expected = values_of(computed, ())
    return [
        _line(f"{path}.{name}", value, expected[name])
        for name, value in values_of(given, ()).items()
        if not _agree(value, expected[name])
    ]


def _contradictions(document: SuiteFile) -> list[str]:
    """A line for each cell that contradicts the rest of the file."""
    names = [each.name for each in document.workloads]
    seen = set[tuple[str, str]]()
    lines = []
    for cell in document.cells:
        path = f"cells[{cell_name(cell)}]"
        if cell.workload not in names:
            lines.append(f"{path}.workload: it is not one of the workloads")
        if (cell.workload, cell.label) in seen:
            lines.append(f"{path}.label: there is another cell of that name")
        if bool(cell.null_reason) == bool(cell.windows):
            lines.append(f"{path}.null_reason: a cell has windows, or a reason for having none")
        seen.add((cell.workload, cell.label))
    return lines


def _agree(given: Any, computed: Any) -> bool:
    """True if the values are equal, or if floats in them differ by at most TOLERANCE."""
    if isinstance(given, float) and isinstance(computed, float):
        return math.isclose(given, computed, rel_tol=TOLERANCE)
    if isinstance(given, list) and isinstance(computed, list):
        if len(given) != len(computed):
            return False
        return all(_agree(*pair) for pair in zip(given, computed, strict=True))
    return given == computed


def _line(path: str, given: Any, computed: Any) -> str:
    """The line that reports a value which does not follow from the windows."""
    return f"{path}: {given} in the file, {computed} recomputed from the windows"
