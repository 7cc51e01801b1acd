"""Seals: a digest of each raw field, by which `fastloop suite verify` names what was altered.

They show edits and damage. They don't show forgery, as whoever makes up values can seal them too:
that is why figures are only published by somebody else than the author of an adapter.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from fastloop.suite.suite_file import Cell, SuiteFile, values_of

DIGITS = 12
"""Hexadecimal digits of a seal."""


def seal(document: SuiteFile) -> SuiteFile:
    """The document with the seals of all of its raw fields."""
    cells = [replace(cell, seals=seals_of_cell(cell)) for cell in document.cells]
    return replace(document, cells=cells, seals=seals_of_head(document))


def seals_of_cell(cell: Cell) -> dict[str, str]:
    """Name of each raw field of the cell -> its seal; each window has one of its own."""
    values = values_of(cell, skipped=("figures", "seals"))
    windows = values.pop("windows")
    by_round = {f"windows.{number}": window for number, window in windows.items()}
    return {name: _digest(value) for name, value in (values | by_round).items()}


def seals_of_head(document: SuiteFile) -> dict[str, str]:
    """Path of each field outside of the cells -> its seal, and that of the list of cells."""
    values = values_of(document, skipped=("cells", "seals"))
    flat: dict[str, Any] = {"cells": [_name(cell) for cell in document.cells]}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": each for key, each in value.items()}
        elif name == "workloads":
            # The reason for missing ranks is recomputed, as the ranks are.
            flat |= {
                f"workloads.{each['name']}.{key}": part
                for each in value
                for key, part in each.items()
                if key != "undetermined"
            }
        else:
            flat[name] = value
    return {path: _digest(value) for path, value in flat.items()}


def broken_seals(document: SuiteFile) -> list[str]:
    """A line for each field that is not what was sealed, with its path."""
    lines = _differences("", document.seals, seals_of_head(document))
    for cell in document.cells:
        lines += _differences(f"cells[{_name(cell)}].", cell.seals, seals_of_cell(cell))
    return lines


def _differences(prefix: str, sealed: dict[str, str], found: dict[str, str]) -> list[str]:
    paths = dict.fromkeys((*sealed, *found))
    broken = [path for path in paths if sealed.get(path) != found.get(path)]
    return [f"{prefix}{path}: altered, added or removed since it was sealed" for path in broken]


def _name(cell: Cell) -> str:
    return f"{cell.workload} {cell.label}"


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
