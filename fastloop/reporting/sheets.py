"""The report's tables as plain cells, for HTML and Markdown alike. Headings name the units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastloop import stats
from fastloop.reporting.summary import Comparison, Group, Row
from fastloop.result import Result

NOTHING = "\u2014"
DASH = "\u2013"
MEANINGS = {
    "traversal": "every batch is delivered to the device",
    "training": "the model steps on every batch",
    "inference": "the model answers every batch",
}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table: its first column names the row."""

    heading: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    numeric: bool = True
    """False where the columns hold words."""


def seed_sheets(groups: Sequence[Group]) -> list[Sheet]:
    """A table for each benchmark: rows loaders, columns datasets, cells mean (std) seconds."""
    names = dict.fromkeys(one.benchmark for group in groups for one in group.comparisons)
    return [_seed_sheet(groups, name) for name in names]


def benchmark_sheet(comparison: Comparison) -> Sheet:
    """Rank, median, mean (std), interval, ratio, limit, samples/s and memory of every row."""
    base = comparison.baseline or "baseline"
    columns: dict[str, Callable[[Row], str]] = _columns(comparison, base)
    return Sheet(
        heading=f"{comparison.benchmark.capitalize()}: ranking",
        head=("", *columns),
        rows=tuple(
            (row.label, *(tell(row) for tell in columns.values())) for row in comparison.rows
        ),
        note=(
            "Equal ranks: these trials can't tell the jobs apart. 95 %: interval of the median; "
            "ratios are paired by round, below 1 is faster. limit: share of what the machine can "
            "do. memory: peak PSS of the process and its workers."
        ),
    )


def unranked_sheet(results: Sequence[Result]) -> Sheet | None:
    """The jobs without a rank and the reason of each; None where all have finished."""
    rows = [
        (one.name, one.status, one.status_reason or NOTHING, str(len(one.trials)))
        for one in results
        if one.status != "FINISHED" or not one.trials
    ]
    if not rows:
        return None
    head = ("job", "status", "reason", "trials kept")
    return Sheet(heading="Not ranked", head=head, rows=tuple(rows), numeric=False)


def notes_sheet(results: Sequence[Result]) -> Sheet | None:
    """What a reader should know before trusting a figure; None where there is nothing."""
    rows = tuple((one.name, flag) for one in results for flag in one.flags)
    head = ("job", "note")
    return Sheet(heading="Notes", head=head, rows=rows, numeric=False) if rows else None


def machine_sheet(results: Sequence[Result]) -> Sheet:
    """The machine, the software and the commit; a column for each machine that took part."""
    found: dict[str, dict] = {}
    for result in results:
        found.setdefault(repr(sorted(result.environment.items(), key=str)), result.environment)
    machines = list(found.values())
    told: dict[str, Callable[[dict], object]] = {
        "host": lambda one: one.get("host"),
        "CPU": lambda one: one.get("cpu"),
        "usable cores": lambda one: one.get("cores_usable"),
        "memory, GiB": lambda one: one.get("memory_gib"),
        "GPUs": lambda one: ", ".join(one.get("gpus") or []) or "none",
        "system": lambda one: one.get("platform"),
        "Python": lambda one: one.get("python"),
        "versions": lambda one: ", ".join(
            f"{name} {number}" for name, number in (one.get("versions") or {}).items() if number
        ),
        "commit": lambda one: one.get("git_commit"),
    }
    rows = tuple((name, *(str(tell(one)) for one in machines)) for name, tell in told.items())
    return Sheet(heading="Machine", head=("", *[""] * len(machines)), rows=rows, numeric=False)


def settings_sheet(results: Sequence[Result]) -> Sheet:
    """Every setting that all jobs share, but for class names and folders."""
    first, *others = [result.params for result in results]
    rows = tuple(
        (name, _setting(value))
        for name, value in sorted(first.items())
        if not name.endswith(("_target_", ".root"))
        and all(name in one and one[name] == value for one in others)
    )
    return Sheet(heading="Settings that all jobs share", head=("", ""), rows=rows, numeric=False)


def decimals(values: Sequence[float], digits: int = 3, least: int = 3) -> int:
    """How many give the smallest of these that many digits; at the least three, as seed 000."""
    smallest = min((value for value in values if value > 0), default=1.0)
    return min(9, max(least, digits - 1 - math.floor(math.log10(smallest))))


def mean_std(seconds: Sequence[float], digits: int) -> str:
    """mean (std), as seed 000 writes it."""
    deviation = stats.std(seconds)
    spread = f" ({deviation:.{digits}f})" if deviation is not None else ""
    return f"{stats.mean(seconds):.{digits}f}{spread}"


def _seed_sheet(groups: Sequence[Group], benchmark: str) -> Sheet:
    columns = {
        f"{group.title}, s": {row.label: row.seconds for row in one.rows}
        for group in groups
        for one in group.comparisons
        if one.benchmark == benchmark
    }
    told = [label for group in groups for label in _labels(group)]
    labels = [one for one in dict.fromkeys(told) if any(one in cells for cells in columns.values())]
    digits = [decimals([stats.median(s) for s in cells.values()]) for cells in columns.values()]
    rows = tuple(
        (
            label,
            *(
                mean_std(cells[label], places) if label in cells else NOTHING
                for cells, places in zip(columns.values(), digits, strict=True)
            ),
        )
        for label in labels
    )
    meaning = MEANINGS.get(benchmark)
    return Sheet(
        heading=f"{benchmark.capitalize()}: {meaning}" if meaning else benchmark.capitalize(),
        head=("mean (std) of a trial", *columns),
        rows=rows,
    )


def _labels(group: Group) -> list[str]:
    """In the order in which the jobs were asked for."""
    by_name = {row.result.name: row.label for one in group.comparisons for row in one.rows}
    return [by_name[result.name] for result in group.results if result.name in by_name]


def _columns(comparison: Comparison, base: str) -> dict[str, Callable[[Row], str]]:
    digits = decimals([row.median for row in comparison.rows])
    share = decimals([100 * row.limit_fraction for row in comparison.rows], digits=2, least=1)
    return {
        "rank": lambda row: str(row.rank) if row.rank else NOTHING,
        "median, s": lambda row: f"{row.median:.{digits}f}",
        "mean (std), s": lambda row: mean_std(row.seconds, digits),
        "95 %, s": lambda row: _interval(row.interval, digits),
        f"time / {base}'s": lambda row: _ratio(row, comparison.baseline),
        "its 95 %": lambda row: (
            _interval((row.ratio.low, row.ratio.high), 3) if row.ratio else NOTHING
        ),
        "limit, %": lambda row: f"{100 * row.limit_fraction:.{share}f}",
        "samples/s": lambda row: f"{row.samples_per_s:,.0f}",
        "memory, MiB": lambda row: f"{row.peak_mib:,.0f}" if row.peak_mib else NOTHING,
    }


def _ratio(row: Row, baseline: str) -> str:
    if row.label == baseline:
        return "1"
    return f"{row.ratio.estimate:.3f}" if row.ratio else NOTHING


def _interval(bounds: tuple[float, float] | None, digits: int) -> str:
    return f"{bounds[0]:.{digits}f}{DASH}{bounds[1]:.{digits}f}" if bounds else NOTHING


def _setting(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
