"""Make the report's tables of text cells, for both HTML and Markdown. Headings name the units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastloop.core import stats
from fastloop.core.explanation import Explanation, LadderRow
from fastloop.core.number_text import (
    WIDEST_INTERVAL,
    TimeUnit,
    decimals,
    show_estimate,
    show_percent,
    significant,
    unit_of_all,
)
from fastloop.core.result import Result, outcome
from fastloop.reporting.caveat_groups import group_caveats
from fastloop.reporting.limit_text import describe_origin, limit_legend
from fastloop.reporting.short_names import short_names
from fastloop.reporting.summary import Comparison, JobGroup, Row

NOTHING = "\u2014"
"""The em dash in a cell without a value."""
EN_DASH = "\u2013"
"""The en dash between the ends of an interval."""
LONGEST_BASELINE = 20
"""Longest name of a baseline for the heading of a column, in characters."""
KEPT_HEADINGS = ("median", "time / ")
"""Beginnings of the headings that a ranking shows on a narrow screen, besides the rank."""
MEANINGS = {
    "traversal": "every batch is delivered to the device",
    "training": "the model trains on every batch",
    "inference": "the model runs inference on every batch",
}
"""Benchmark -> its work on each batch, for a heading."""
SHARES_LEGEND = (
    "By how much the epoch is longer for each part, as a share of it, with the 95 % interval of "
    "the median over rounds, or the range in parentheses. wait: what a perfect loader would save."
)
GAINS_LEGEND = (
    "Share of an epoch that a change saves: predicted by a model of the loader, and as it was when "
    "the change ran next to the job as it is."
)
PARTS_LEGEND = (
    "exposed: by how much a batch takes longer for the part. hidden: the rest of the part's work, "
    "done while the loop stepped or another worker worked; ?: unknown."
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """Text cells under a heading; the first column names the row."""

    heading: str
    head: tuple[str, ...]
    """Headings of the columns."""
    rows: tuple[tuple[str, ...], ...]
    """The cells of each row, one for each column."""
    legend: str = ""
    """A text below the table that explains its figures."""
    numeric: bool = True
    """False if the columns hold text."""
    kept: tuple[str, ...] = ()
    """Headings of the columns that are shown on a screen as narrow as a phone's; empty: all."""


def overview_tables(groups: Sequence[JobGroup]) -> list[Table]:
    """A table for each benchmark: jobs as rows, groups of jobs as columns, mean (std) times."""
    benchmarks = dict.fromkeys(
        comparison.benchmark for group in groups for comparison in group.comparisons
    )
    return [_overview_table(groups, benchmark) for benchmark in benchmarks]


def ranking_table(comparison: Comparison) -> Table:
    """Rank, times, ratio, limit, samples/s, limiting part and memory of every row.

    Columns without any value are left out.
    """
    baseline = comparison.baseline
    # A long name would widen its column; the legend has it instead.
    base = baseline if 0 < len(baseline) <= LONGEST_BASELINE else "baseline"
    cells = {
        heading: [cell(row) for row in comparison.rows]
        for heading, cell in _columns(comparison, base).items()
    }
    filled = {heading: column for heading, column in cells.items() if {*column} != {NOTHING}}
    return Table(
        heading=f"{comparison.benchmark.capitalize()}: ranking",
        head=("", *filled),
        rows=tuple(
            (row.label, *(column[place] for column in filled.values()))
            for place, row in enumerate(comparison.rows)
        ),
        legend=(
            "Equal ranks: no significant difference. 95 %: confidence interval of the median; "
            "ratios are paired by round, below 1 is faster. "
            f"{limit_legend([comparison])}. {why_legend([comparison])}"
            f"memory: peak PSS of the process and its workers.{_origins(comparison)}"
            + (f" baseline: {baseline}." if baseline and base != baseline else "")
        ),
        kept=tuple(each for each in filled if each == "rank" or each.startswith(KEPT_HEADINGS)),
    )


def _origins(comparison: Comparison) -> str:
    """The engines that measured the limits, as a sentence; empty if none is recorded."""
    origins = [row.limit_origin for row in comparison.rows]
    texts = dict.fromkeys(describe_origin(each) for each in origins if each and each.engine)
    return f" Measured limits: {'; '.join(texts)}." if texts else ""


def why_legend(comparisons: Sequence[Comparison]) -> str:
    """Explanation of the column `why`, with a full stop; empty if no job was explained."""
    is_explained = any(row.why for comparison in comparisons for row in comparison.rows)
    return "why: the part that limits the job. " if is_explained else ""


def not_ranked_table(results: Sequence[Result]) -> Table | None:
    """Unfinished jobs, each with the reason; None if all jobs have finished."""
    rows = [
        (result.name, *(part or NOTHING for part in outcome(result)), str(len(result.trials)))
        for result in results
        if result.status != "FINISHED" or not result.trials
    ]
    if not rows:
        return None
    head = ("job", "status", "reason", "trials kept")
    return Table(heading="Not ranked", head=head, rows=tuple(rows), numeric=False)


def caveats_table(results: Sequence[Result]) -> Table | None:
    """The caveats of the jobs' figures; None if no job has any."""
    rows = tuple((each.kind, each.text) for each in group_caveats(results))
    head = ("note", "jobs")
    return Table(heading="Notes", head=head, rows=rows, numeric=False) if rows else None


def machine_table(results: Sequence[Result]) -> Table:
    """Hardware, software and commit, with a column for each environment in which jobs ran."""
    environments: dict[str, dict] = {}
    for result in results:
        # An environment holds lists and dicts, and so can't be a key itself.
        key = repr(sorted(result.environment.items(), key=str))
        environments.setdefault(key, result.environment)
    columns = list(environments.values())
    lines: dict[str, Callable[[dict], object]] = {
        "host": lambda machine: machine.get("host"),
        "CPU": lambda machine: machine.get("cpu"),
        "usable cores": lambda machine: machine.get("cores_usable"),
        "memory, GiB": lambda machine: machine.get("memory_gib"),
        "GPUs": lambda machine: ", ".join(machine.get("gpus") or []) or "none",
        "system": lambda machine: machine.get("platform"),
        "Python": lambda machine: machine.get("python"),
        "versions": lambda machine: ", ".join(
            f"{name} {number}" for name, number in (machine.get("versions") or {}).items() if number
        ),
        "commit": lambda machine: machine.get("git_commit"),
    }
    rows = tuple(
        (name, *(str(value(column)) for column in columns)) for name, value in lines.items()
    )
    return Table(heading="Machine", head=("", *[""] * len(columns)), rows=rows, numeric=False)


def settings_table(results: Sequence[Result]) -> Table:
    """The settings that are equal in all jobs, except class names and folders."""
    first, *others = [result.params for result in results]
    rows = tuple(
        (name, _format_setting(value))
        for name, value in sorted(first.items())
        if not name.endswith(("_target_", ".root"))
        and all(name in params and params[name] == value for params in others)
    )
    return Table(heading="Settings that all jobs share", head=("", ""), rows=rows, numeric=False)


def mean_std(seconds: Sequence[float], digits: int, unit: TimeUnit) -> str:
    """The times in that unit as `mean (std)`; a single time has no `(std)`.

    digits: number of decimals.
    """
    deviation = stats.std(seconds)
    spread = f" ({unit.of(deviation):.{digits}f})" if deviation is not None else ""
    return f"{unit.of(stats.mean(seconds)):.{digits}f}{spread}"


def _overview_table(groups: Sequence[JobGroup], benchmark: str) -> Table:
    """A table of one benchmark: jobs as rows, groups of jobs as columns."""
    columns = {
        f"{group.title}, {_unit_of(comparison).name}": _overview_column(comparison)
        for group in groups
        for comparison in group.comparisons
        if comparison.benchmark == benchmark
    }
    all_labels = dict.fromkeys(label for group in groups for label in _labels(group))
    labels = [name for name in all_labels if any(name in cells for cells in columns.values())]
    meaning = MEANINGS.get(benchmark)
    return Table(
        heading=f"{benchmark.capitalize()}: {meaning}" if meaning else benchmark.capitalize(),
        head=("mean (std) per trial", *columns),
        rows=tuple(
            (label, *(cells.get(label, NOTHING) for cells in columns.values())) for label in labels
        ),
    )


def _overview_column(comparison: Comparison) -> dict[str, str]:
    """Label of a job -> its cell."""
    # All figures of a column have the same unit and number of decimals, so that readers can compare
    # the figures at a glance.
    unit = _unit_of(comparison)
    digits = decimals([unit.of(row.median_s) for row in comparison.rows])
    return {row.label: mean_std(row.seconds, digits, unit) for row in comparison.rows}


def _unit_of(comparison: Comparison) -> TimeUnit:
    """The unit of all times in a comparison."""
    return unit_of_all([row.median_s for row in comparison.rows])


def _labels(group: JobGroup) -> list[str]:
    """Labels of the rows in the order in which the jobs were requested."""
    by_name = {
        row.result.name: row.label for comparison in group.comparisons for row in comparison.rows
    }
    return [by_name[result.name] for result in group.results if result.name in by_name]


def _columns(comparison: Comparison, base: str) -> dict[str, Callable[[Row], str]]:
    """Heading of a column -> the function that formats a row's cell.

    base: the word for the baseline in a heading.
    """
    unit = _unit_of(comparison)
    digits = decimals([unit.of(row.median_s) for row in comparison.rows])
    shares = [row.limit_fraction for row in comparison.rows if row.limit_fraction is not None]
    places = decimals([100 * share for share in shares], digits=2)
    # A single job has no rank.
    has_others = len(comparison.rows) > 1
    return {
        "rank": lambda row: str(row.rank) if row.rank and has_others else NOTHING,
        f"median, {unit.name}": lambda row: f"{unit.of(row.median_s):.{digits}f}",
        f"mean (std), {unit.name}": lambda row: mean_std(row.seconds, digits, unit),
        f"95 %, {unit.name}": lambda row: _format_interval(_in(unit, row.interval_s), digits),
        f"time / {base}": lambda row: _format_ratio(row, comparison.baseline),
        "ratio's 95 %": lambda row: _format_bounds(row.ratio),
        "limit, %": lambda row: (
            NOTHING if row.limit_fraction is None else f"{100 * row.limit_fraction:.{places}f}"
        ),
        "samples/s": lambda row: f"{row.samples_per_s:,.0f}",
        "why": lambda row: row.why or NOTHING,
        "memory, MiB": lambda row: f"{row.peak_mib:,.0f}" if row.peak_mib else NOTHING,
    }


def _format_ratio(row: Row, baseline: str) -> str:
    """The ratio of the row's time to the baseline's; a dash if it is unknown."""
    if row.label == baseline:
        return "1"
    return f"{row.ratio.estimate:.3f}" if row.ratio else NOTHING


def _in(unit: TimeUnit, interval: tuple[float, float] | None) -> tuple[float, float] | None:
    """An interval of seconds in that unit; None if there is no interval."""
    return (unit.of(interval[0]), unit.of(interval[1])) if interval else None


def _format_interval(bounds: tuple[float, float] | None, digits: int) -> str:
    """The interval as text; a dash if it is unknown or too wide to say anything."""
    if bounds is None or bounds[1] > WIDEST_INTERVAL * bounds[0]:
        return NOTHING
    return f"{bounds[0]:.{digits}f}{EN_DASH}{bounds[1]:.{digits}f}"


def _format_bounds(ratio: stats.Ratio | None) -> str:
    """The 95 % interval of the ratio, or the word `range` and the range of too few rounds.

    ratio: None gives a dash.
    """
    if ratio is None:
        return NOTHING
    bounds = _format_interval((ratio.low, ratio.high), 3)
    return bounds if ratio.is_interval else f"range {bounds}"


def _format_setting(value: object) -> str:
    """The value as text; None and truth values in lower case."""
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shares_table(results: Sequence[Result]) -> Table | None:
    """Shares of an epoch by part, with a row for each explained job; None without such jobs."""
    explained = explanations_of(results)
    # Jobs have different parts. Each part of any job has a column, in the order of the ladders,
    # which list the parts of a job.
    parts = dict.fromkeys(row.rung for _, each in explained for row in each.ladder.rows)
    rows = []
    for label, explanation in explained:
        shares = {row.rung: row.share for row in explanation.ladder.rows}
        cells = [
            show_estimate(shares[part], show_percent) if part in shares else NOTHING
            for part in parts
        ]
        wait = show_estimate(explanation.ladder.wait_share, show_percent)
        rows.append((label, wait, *cells))
    head = ("", "wait", *parts)
    table = Table(heading="Parts of an epoch", head=head, rows=tuple(rows), legend=SHARES_LEGEND)
    return table if rows else None


def gains_table(results: Sequence[Result]) -> Table | None:
    """Predicted and realised gain of each change that was tried; None if no change was tried."""
    rows = tuple(
        (
            f"{label}: {each.change}",
            NOTHING
            if each.predicted_gain is None
            else show_estimate(each.predicted_gain, show_percent),
            show_estimate(each.realised_gain, show_percent),
        )
        for label, explanation in explanations_of(results)
        for each in explanation.what_ifs
        if each.realised_gain
    )
    head = ("what if", "predicted gain", "realised gain")
    return Table(heading="What if", head=head, rows=rows, legend=GAINS_LEGEND) if rows else None


def parts_table(results: Sequence[Result]) -> Table | None:
    """Exposed and hidden milliseconds of each explained job's parts; None without such jobs."""
    rows = tuple(
        (f"{label}: {row.rung}", *_milliseconds(row))
        for label, explanation in explanations_of(results)
        for row in explanation.ladder.rows
    )
    head = ("part", "exposed, ms a batch", "hidden, ms a batch")
    return Table(heading="Ladder", head=head, rows=rows, legend=PARTS_LEGEND) if rows else None


def explanations_of(results: Sequence[Result]) -> list[tuple[str, Explanation]]:
    """Short name and explanation of each job that was explained."""
    names = short_names(results)
    return [(names[each.name], each.explanation) for each in results if each.explanation]


def _milliseconds(row: LadderRow) -> tuple[str, str]:
    """The cells of exposed and hidden milliseconds; `?` if the hidden ones are unknown."""
    hidden = "?" if row.hidden_ms is None else significant(row.hidden_ms)
    return show_estimate(row.exposed_ms, significant), hidden
