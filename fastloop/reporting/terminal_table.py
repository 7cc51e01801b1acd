"""Format the table at the end of a sweep: a row for each job, as wide as the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fastloop.core import stats
from fastloop.core.number_text import TimeUnit, decimals, unit_of_all
from fastloop.core.ranking import NO_RANK
from fastloop.core.result import Result, outcome, world_size
from fastloop.core.text import printable
from fastloop.reporting.caveat_groups import group_caveats
from fastloop.reporting.comparable import brings_data
from fastloop.reporting.header import describe_samples, load_lines, show_trials
from fastloop.reporting.limit_text import limit_legend
from fastloop.reporting.outcome_sentences import verdict
from fastloop.reporting.ranks_table import rank_lines
from fastloop.reporting.report_tables import why_legend
from fastloop.reporting.summary import Comparison, JobGroup, Row, summarize

WIDTH, MAX_WIDTH = 80, 120
"""Minimum and maximum number of columns of a table."""
NAME_WIDTH = 23
"""Minimum width of the column of names."""
TIME_WIDTH, RANK_WIDTH, LIMIT_WIDTH = 16, 4, 6
"""Widths of a benchmark's columns."""
CELL_WIDTH = TIME_WIDTH + 1 + RANK_WIDTH + 1 + LIMIT_WIDTH
"""Width of a benchmark's columns and the spaces between them, without the column `why`."""
LEGEND = "mean (std) of the trials; equal ranks: no significant difference; "
"""The beginning of the line below a table."""


def format_tables(results: Sequence[Result], baseline: str = "", width: int = WIDTH) -> str:
    """The text at the end of a sweep: load of the machine, a table and a verdict for each group of
    jobs, ranks, caveats and unfinished jobs.

    width: number of columns of the terminal; between 80 and 120 are used.
    """
    width = min(max(width, WIDTH), MAX_WIDTH)
    parts = [textwrap.fill(line, width) for line in load_lines(results)]
    parts += [_format_table(group, width) for group in summarize(results, baseline)]
    ranks = [(result.name, line) for result in results for line in rank_lines(result)]
    caveats = [(each.kind, each.text) for each in group_caveats(results)]
    unfinished = [
        (result.name, ": ".join(filter(None, outcome(result))))
        for result in results
        if result.status != "FINISHED"
    ]
    parts += [
        "\n".join(_name_beside_text(*line, width) for line in lines)
        for lines in (ranks, caveats, unfinished)
        if lines
    ]
    return printable("\n\n".join(parts))


def _format_table(group: JobGroup, width: int) -> str:
    """The title, the tables, the legend and the verdicts of a group."""
    lines = textwrap.wrap(_title(group), width)
    for comparisons in _split_into_tables(group, width):
        lines += ["", *_table_lines(comparisons, width)]
    legend = f"{LEGEND}{limit_legend(group.comparisons)}"
    if why := why_legend(group.comparisons):
        legend += f"; {why.rstrip('. ')}"
    lines += ["", *textwrap.wrap(legend, width)]
    for comparison in group.comparisons:
        text = f"{comparison.benchmark}: {verdict(comparison)}"
        lines += ["", *textwrap.wrap(text, width)]
    return "\n".join(lines)


def _split_into_tables(group: JobGroup, width: int) -> list[list[Comparison]]:
    """Divide the comparisons among tables.

    A table takes all comparisons that fit next to the longest name, and at least one.
    """
    labels = [row.label for comparison in group.comparisons for row in comparison.rows]
    longest = max([NAME_WIDTH, *(len(label) + 1 for label in labels)])
    # If not even one comparison fits next to the longest name, the column of names stays narrow:
    # each longer name gets a line of its own above its row.
    if longest + _cell_width(group.comparisons[0]) > width:
        longest = NAME_WIDTH
    tables: list[list[Comparison]] = []
    free = 0
    for comparison in group.comparisons:
        needed = _cell_width(comparison) + 1
        if needed > free:
            tables.append([])
            free = width - longest + 1
        tables[-1].append(comparison)
        free -= needed
    return tables


def _cell_width(comparison: Comparison) -> int:
    """Width of a benchmark's columns and of the spaces between them."""
    why = _why_width(comparison)
    return CELL_WIDTH + (why + 1 if why else 0)


def _why_width(comparison: Comparison) -> int:
    """Width of the column `why`; 0 if no job was explained in this benchmark."""
    words = [row.why for row in comparison.rows if row.why]
    return max(map(len, ["why", *words])) if words else 0


def _table_lines(comparisons: Sequence[Comparison], width: int) -> list[str]:
    """The heading and a line for each job, in the order of the first comparison."""
    labels = dict.fromkeys(row.label for comparison in comparisons for row in comparison.rows)
    # A name that does not fit gets its own line, so it does not widen the column.
    widest = width - sum(_cell_width(comparison) + 1 for comparison in comparisons) + 1
    names = [len(label) + 1 for label in labels if len(label) < widest]
    column = max([NAME_WIDTH, *names])
    formats = [_formats(comparison) for comparison in comparisons]
    lines = [_head(comparisons, column)]
    for label in labels:
        rows = [comparison.row(label) for comparison in comparisons]
        cells = [
            _cell(row, specs, comparison) + _why_cell(row, comparison)
            for row, specs, comparison in zip(rows, formats, comparisons, strict=True)
        ]
        lines.append(_name_beside_cells(label, " ".join(cells).rstrip(), column, width))
    return lines


def _formats(comparison: Comparison) -> list[str]:
    """Formats of mean and deviation, most precise first; a cell uses the first that fits.

    The first one shows two digits of the fastest job, and at least one decimal.
    """
    unit = _unit(comparison)
    most = decimals([unit.of(row.median_s) for row in comparison.rows], digits=2)
    # The last one, such as 3e+05, fits whatever the time.
    return [*(f".{places}f" for places in range(most, -1, -1)), ".0e"]


def _title(group: JobGroup) -> str:
    """The data, followed by samples, batch size, epochs, trials, processes and device if all
    rows share them."""
    first = group.results[0]
    parts = [f"{samples} samples"] if (samples := describe_samples(first)) else []
    loaders = {result.loader for result in group.results}
    if len(group.results) > 1 and len(loaders) == 1:
        parts.append(f"loader {first.loader}")
    for name in ("batch_size", "epochs", "batches", "trials"):
        values = {_setting(result, name) for result in group.results} - {None}
        if len(values) == 1:
            parts.append(f"{name} {values.pop()}")
    sizes = {world_size(result) for result in group.results}
    if len(sizes) == 1 and sizes != {1}:
        parts.append(f"{world_size(first)} processes")
    devices = {result.tags["device"] for result in group.results}
    if len(devices) == 1:
        parts.append(f"device {first.tags['device']}")
    if brings_data(first):
        parts.append("compared only with its own first epoch")
    return f"{group.title}: {', '.join(parts)}"


def _setting(result: Result, name: str) -> object:
    return show_trials(result) if name == "trials" else result.params.get(name)


def _head(comparisons: Sequence[Comparison], column: int) -> str:
    """The line of headings."""
    cells = []
    for comparison in comparisons:
        # Twelve letters, a comma, a space and a unit of two letters fill the column.
        time = f"{comparison.benchmark[:12]}, {_unit(comparison).name}"
        width = _why_width(comparison)
        why = f" {'why':<{width}}" if width else ""
        cells.append(f"{time:>{TIME_WIDTH}} {'rank':>{RANK_WIDTH}} {'limit':>{LIMIT_WIDTH}}{why}")
    return (" " * column + " ".join(cells)).rstrip()


def _unit(comparison: Comparison) -> TimeUnit:
    return unit_of_all([row.median_s for row in comparison.rows])


def _cell(row: Row | None, formats: Sequence[str], comparison: Comparison) -> str:
    """Time, rank and limit of a job; blanks if it did not run the benchmark."""
    if row is None:
        return " " * CELL_WIDTH
    unit = _unit(comparison)
    seconds = _first_within(
        TIME_WIDTH, [_mean_and_spread(row.seconds, unit, spec) for spec in formats]
    )
    rank = str(row.rank or NO_RANK) if len(comparison.rows) > 1 else NO_RANK
    limit = _format_limit(row.limit_fraction)
    return f"{seconds:>{TIME_WIDTH}} {rank:>{RANK_WIDTH}} {limit:>{LIMIT_WIDTH}}"


def _why_cell(row: Row | None, comparison: Comparison) -> str:
    width = _why_width(comparison)
    return f" {row.why if row else '':<{width}}" if width else ""


def _format_limit(fraction: float | None) -> str:
    """The share in percent, as wide as the column; a dash if there is none."""
    # No limit is measured for this kind of work.
    if fraction is None:
        return "-  "
    shares = [f"{100 * fraction:{spec}}" for spec in (".1f", ".0f")]
    return f"{_first_within(LIMIT_WIDTH - len(' %'), [*shares, '>999'])} %"


def _mean_and_spread(seconds: Sequence[float], unit: TimeUnit, spec: str) -> str:
    deviation = stats.std(seconds)
    spread = f" ({unit.of(deviation):{spec}})" if deviation is not None else ""
    return f"{unit.of(stats.mean(seconds)):{spec}}{spread}"


def _first_within(width: int, texts: Sequence[str]) -> str:
    return next((text for text in texts if len(text) <= width), texts[-1])


def _name_beside_text(name: str, text: str, width: int) -> str:
    """The name in its column with the text next to it, or the text after a longer name."""
    indent = " " * NAME_WIDTH
    if len(name) >= NAME_WIDTH:
        line = f"{name}  {text}"
        return textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False)
    lines = textwrap.wrap(text, width - NAME_WIDTH, break_on_hyphens=False)
    return name.ljust(NAME_WIDTH) + f"\n{indent}".join(lines)


def _name_beside_cells(name: str, cells: str, column: int, width: int) -> str:
    """The name in its column with the cells next to it, or above the cells if it is too long."""
    if len(name) < column:
        return name.ljust(column) + cells
    return "\n".join([*textwrap.wrap(name, width, break_on_hyphens=False), " " * column + cells])
