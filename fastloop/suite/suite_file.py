"""The file of a suite: every raw value, the figures that follow from them, and their seals.

The JSON Schema of the file is suite.schema.json next to this module; docs/suite.md describes it. A
cell is one loader with one configuration in one workload, and a window the timed part of one trial.
A null cell has no windows. A seal is a digest of a raw field, by which `fastloop suite verify`
names altered fields. Seals show edits and damage. They don't show forgery, because whoever makes up
values can seal them too. So figures are published only by somebody other than the author of an
adapter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic.dataclasses import dataclass

from fastloop.core import result_io, stats
from fastloop.core.atomic_files import write_text
from fastloop.core.ranking import Ranking, rank_jobs
from fastloop.core.result import Measurement, Shuffling
from fastloop.core.text import printable_line
from fastloop.core.types import UsageError
from fastloop.suite.workloads import Configuration, Scope

SCHEMA = 1
"""Number of the file's schema. Increase it when a field changes its meaning or is removed."""
SCHEMA_FILE = Path(__file__).with_name("suite.schema.json")
STRICT = pydantic.ConfigDict(extra="forbid", ser_json_inf_nan="constants")
Finite = Annotated[float, pydantic.Field(allow_inf_nan=False)]

SEAL_DIGITS = 12
"""Hexadecimal digits of a seal."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Figures:
    """Values that are recomputed from the windows of a workload's cells."""

    seconds: Finite
    """Median over the windows, for the epochs that were asked for."""
    seconds_interval: tuple[Finite, Finite] | None
    """95 % interval of that median; None below three windows."""
    samples_per_s: Finite
    """Median over the windows."""
    limit_share: Finite | None
    """Median share of the machine's limit, measured next to each window; None without a limit."""
    ratio: Finite | None
    """Seconds / seconds of the first cell in the workload's ranking, paired by round; None if the
    cell is not ranked, or has another number of windows."""
    ratio_interval: tuple[Finite, Finite] | None
    """95 % interval of the ratio; None for the first cell and below three windows."""
    rank: int | None
    """One more than the number of cells that are surely faster."""
    tied_with: list[str]
    """Labels of the other cells of that rank."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Cell:
    """A loader in a workload: measured, or null with a reason."""

    workload: str
    label: str
    loader: str
    configuration: Configuration
    overrides: list[str]
    """Overrides of the row beyond the workload's."""
    code: str
    """Path of the option's code in the repository."""
    cache: str
    """State of the page cache before each window: warm or cold."""
    null_reason: str
    """The reason why there are no figures; empty if there are."""
    unranked_reason: str = ""
    """The reason why a measured cell has no rank; empty if it may have one."""
    measured_ms: int | None = None
    """Start of the last trial, in milliseconds since 1970."""
    content: str = ""
    """Digest of the samples that were delivered; empty for random samples, which are compared by
    their seeds, and for a null cell."""
    windows: dict[int, Measurement] = field(default_factory=dict)
    """Number of the round -> clock readings of the timed window, and the limit next to it."""
    shuffling: Shuffling | None = None
    first_batch_s: Finite | None = None
    peak_pss_mib: Finite | None = None
    caveats: list[str] = field(default_factory=list)
    figures: Figures | None = None
    seals: dict[str, str] = field(default_factory=dict)
    """Name of each field above but the figures -> digest of its value, see `seals_of`."""

    @property
    def seconds(self) -> list[float]:
        """Seconds of the timed windows, in the order of the rounds."""
        return [self.windows[number].seconds for number in sorted(self.windows)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class WorkloadRecord:
    """A workload as it was run."""

    name: str
    title: str
    overrides: list[str]
    samples: int | None
    sample_nbytes: int | None
    undetermined: str
    """The reason why its cells have no ranks; empty if they have."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SuiteFile:
    """All cells of one machine in one round."""

    schema: Literal[1]
    suite: str
    round: str
    scope: Scope
    complete: bool
    """False if workloads or loaders were left out on the command line, or are still missing."""
    machine: dict[str, Any]
    versions: dict[str, str | None]
    commit: str
    """fastloop's commit, with -dirty if files differed."""
    code: str
    """Digest of fastloop's source."""
    workloads: list[WorkloadRecord]
    cells: list[Cell]
    seals: dict[str, str] = field(default_factory=dict)
    """Path of each field above but the cells -> digest of its value."""


FILE = pydantic.TypeAdapter(SuiteFile)


def schema_text() -> str:
    """The JSON Schema of the file, as suite.schema.json has it."""
    return result_io.schema_text(FILE)


def save_suite(document: SuiteFile, path: Path) -> None:
    """Write the file atomically."""
    # Passwords are not hidden here, because that would change sealed text. The reasons and caveats
    # come from result.json, in which they have been hidden already.
    write_text(path, FILE.dump_json(document, indent=1).decode() + "\n")


def check_replaceable(path: Path, scope: Scope, *, is_whole: bool) -> None:
    """Raise UsageError if a run of this scope would replace the file by a less complete one.

    is_whole: True if the run leaves out no workload and no loader.
    """
    if not path.exists():
        return
    old = load_suite(path)
    if old.scope == "full" and scope == "quick":
        has = "the full suite, which the quick one would replace"
    elif old.complete and not is_whole and old.scope == scope:
        has = "all workloads and loaders, which a part of them would replace"
    else:
        return
    raise UsageError(f"{path} has {has}: allowed: with another round= or results=")


def load_suite(path: Path) -> SuiteFile:
    """Read a file; raises UsageError, naming the field, if it does not match the schema."""
    try:
        text = path.read_bytes()
        number = json.loads(text).get("schema")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; allowed: a file of fastloop suite") from error
    # Somebody else's file may nest lists endlessly.
    except (ValueError, AttributeError, RecursionError) as error:
        reason = printable_line(str(error))
        raise UsageError(
            f"{path}: not a JSON object: {reason}; allowed: a file of fastloop suite"
        ) from error
    if number != SCHEMA:
        raise UsageError(f"{path}: schema: {number!r}: allowed: {SCHEMA}")
    try:
        return FILE.validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(printable_line(f"{path}: {where}: {first['msg']}")) from error


def values_of(thing: Any, skipped: tuple[str, ...]) -> dict[str, Any]:
    """Name -> plain JSON value of each field of a dataclass of this module, except the skipped
    ones."""
    plain = pydantic.TypeAdapter(type(thing)).dump_python(thing, mode="json")
    return {each.name: plain[each.name] for each in fields(thing) if each.name not in skipped}


def with_figures(document: SuiteFile) -> SuiteFile:
    """The document with all figures computed again."""
    cells = list(document.cells)
    workloads = []
    for workload in document.workloads:
        places = [place for place, cell in enumerate(cells) if cell.workload == workload.name]
        ranking = _rank([cells[place] for place in places])
        workloads.append(replace(workload, undetermined=ranking.undetermined))
        by_label = {cells[place].label: cells[place] for place in places}
        for place in places:
            cells[place] = replace(cells[place], figures=_figures(cells[place], by_label, ranking))
    return replace(document, cells=cells, workloads=workloads)


def _rank(cells: Sequence[Cell]) -> Ranking:
    """The ranking of those cells of a workload that may have a rank."""
    ranked = {cell.label: cell.seconds for cell in cells if _may_have_rank(cell)}
    return rank_jobs(ranked)


def _may_have_rank(cell: Cell) -> bool:
    """True if the cell was measured, and nothing rules out a rank."""
    return bool(cell.windows) and not cell.null_reason and not cell.unranked_reason


def _figures(cell: Cell, by_label: dict[str, Cell], ranking: Ranking) -> Figures | None:
    """The figures of a cell; None if it was not measured.

    by_label: the cells of its workload. ranking: their ranking.
    """
    if cell.null_reason or not cell.windows:
        return None
    seconds = cell.seconds
    windows = cell.windows.values()
    shares = [each.limit_fraction for each in windows if each.limit_fraction is not None]
    ratio = None
    if _may_have_rank(cell):
        ratio = stats.ratio_or_range(seconds, by_label[ranking.order[0]].seconds)
    is_first = ranking.order[:1] == (cell.label,)
    has_interval = ratio is not None and ratio.is_interval and not is_first
    rank = ranking.ranks.get(cell.label)
    tied = [name for name, other in ranking.ranks.items() if other == rank and name != cell.label]
    return Figures(
        seconds=stats.median(seconds),
        seconds_interval=stats.interval(seconds),
        samples_per_s=stats.median([each.samples_per_s for each in windows]),
        limit_share=stats.median(shares) if shares else None,
        ratio=ratio.estimate if ratio else None,
        ratio_interval=(ratio.low, ratio.high) if ratio and has_interval else None,
        rank=rank,
        tied_with=tied if rank is not None else [],
    )


def seal(document: SuiteFile) -> SuiteFile:
    """Return the document with the seals of all of its raw fields."""
    cells = [replace(cell, seals=seals_of_cell(cell)) for cell in document.cells]
    return replace(document, cells=cells, seals=seals_of_head(document))


def seals_of_cell(cell: Cell) -> dict[str, str]:
    """Name of each raw field of the cell -> its seal; each window has one of its own."""
    values = values_of(cell, skipped=("figures", "seals"))
    windows = values.pop("windows")
    by_round = {f"windows.{number}": window for number, window in windows.items()}
    return {name: _digest(value) for name, value in (values | by_round).items()}


def seals_of_head(document: SuiteFile) -> dict[str, str]:
    """Path of each field outside of the cells -> its seal; "cells" -> the seal of their names."""
    values = values_of(document, skipped=("cells", "seals"))
    flat: dict[str, Any] = {"cells": [cell_name(cell) for cell in document.cells]}
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


def cell_name(cell: Cell) -> str:
    """Workload and label of the cell, which no other cell of the file has."""
    return f"{cell.workload} {cell.label}"


def _digest(value: Any) -> str:
    """The seal of a plain JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:SEAL_DIGITS]
