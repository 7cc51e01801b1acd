"""The table printed at the end of a sweep: a row for each job, 80 columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fastloop.core import stats
from fastloop.core.printable import printable
from fastloop.core.result import Result, world_size
from fastloop.reporting.header import describe_samples
from fastloop.reporting.notes import group_caveats
from fastloop.reporting.ranks import rank_lines
from fastloop.reporting.summary import Comparison, JobGroup, Row, summarize
from fastloop.reporting.verdict import verdict

WIDTH = 80
NAME_WIDTH = 23
CELL_WIDTH = 28
FORMATS = (".3f", ".2f", ".1f", ".0f", ".0e")
"""Formats of mean and deviation, most precise first; the first that fits the column is used."""
BENCHMARKS_PER_ROW = 2
"""Number of benchmarks that fit next to each other; the others follow below."""
LEGEND = (
    "mean (std) of the trials; equal ranks: no significant difference; "
    "limit: share of what the machine can do"
)


def format_tables(results: Sequence[Result], baseline: str = "") -> str:
    """A table and a verdict for each group of jobs, then ranks, notes and unfinished jobs."""
    parts = [_format_table(group) for group in summarize(results, baseline)]
    ranks = [_name_and_text(result.name, line) for result in results for line in rank_lines(result)]
    notes = [_name_and_text(note.kind, note.text) for note in group_caveats(results)]
    unfinished = [
        _name_and_text(result.name, f"{result.status}: {result.status_reason}")
        for result in results
        if result.status != "FINISHED"
    ]
    parts += ["\n".join(lines) for lines in (ranks, notes, unfinished) if lines]
    return printable("\n\n".join(parts))


def _format_table(group: JobGroup) -> str:
    lines = textwrap.wrap(_title(group), WIDTH)
    for start in range(0, len(group.comparisons), BENCHMARKS_PER_ROW):
        lines += ["", *_table_lines(group.comparisons[start : start + BENCHMARKS_PER_ROW])]
    lines += ["", *textwrap.wrap(LEGEND, WIDTH)]
    for comparison in group.comparisons:
        text = f"{comparison.benchmark}: {verdict(comparison)}"
        lines += ["", *textwrap.wrap(text, WIDTH)]
    return "\n".join(lines)


def _table_lines(comparisons: Sequence[Comparison]) -> list[str]:
    """The heading and a line for each job, in the order of the first comparison."""
    labels = dict.fromkeys(row.label for comparison in comparisons for row in comparison.rows)
    return [_head(comparisons), *(_line(comparisons, label) for label in labels)]


def _title(group: JobGroup) -> str:
    """The data, followed by samples, batch size, epochs, trials, processes and device where all
    rows share them."""
    first = group.results[0]
    parts = [f"{samples} samples"] if (samples := describe_samples(first)) else []
    loaders = {result.loader for result in group.results}
    parts += [f"loader {loaders.pop()}"] if len(group.results) > 1 == len(loaders) else []
    for name in ("batch_size", "epochs", "trials"):
        values = {result.params.get(name) for result in group.results}
        parts += [f"{name} {values.pop()}"] if len(values) == 1 else []
    sizes = {world_size(result) for result in group.results}
    parts += [f"{sizes.pop()} processes"] if len(sizes) == 1 and sizes != {1} else []
    devices = {result.tags["device"] for result in group.results}
    parts += [f"device {devices.pop()}"] if len(devices) == 1 else []
    return f"{group.title}: {', '.join(parts)}"


def _head(comparisons: Sequence[Comparison]) -> str:
    cells = [f"{comparison.benchmark[:13]:>13}, s rank  limit" for comparison in comparisons]
    return " " * NAME_WIDTH + " ".join(cells)


def _line(comparisons: Sequence[Comparison], label: str) -> str:
    cells = [_cell(comparison.row(label)) for comparison in comparisons]
    return _name_column(label, " ".join(cells).rstrip())


def _cell(row: Row | None) -> str:
    if row is None:  # this job did not run that benchmark
        return " " * CELL_WIDTH
    seconds = _first_within(16, [_mean_and_spread(row.seconds, spec) for spec in FORMATS])
    return f"{seconds:>16} {row.rank or '?':>4} {_format_limit(row.limit_fraction):>6}"


def _format_limit(fraction: float | None) -> str:
    if fraction is None:  # none is measured for this kind of work
        return "-  "
    shares = [f"{100 * fraction:{spec}}" for spec in (".1f", ".0f")]
    return f"{_first_within(4, [*shares, '>999'])} %"


def _mean_and_spread(seconds: Sequence[float], spec: str) -> str:
    deviation = stats.std(seconds)
    spread = f" ({deviation:{spec}})" if deviation is not None else ""
    return f"{stats.mean(seconds):{spec}}{spread}"


def _first_within(width: int, texts: Sequence[str]) -> str:
    return next((text for text in texts if len(text) <= width), texts[-1])


def _name_and_text(name: str, text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - NAME_WIDTH, break_on_hyphens=False)
    return _name_column(name, ("\n" + " " * NAME_WIDTH).join(lines))


def _name_column(name: str, text: str) -> str:
    """The name in its column with the text next to it, or above the text if it is too long."""
    if len(name) < NAME_WIDTH:
        return name + " " * (NAME_WIDTH - len(name)) + text
    return "\n".join([*textwrap.wrap(name, WIDTH, break_on_hyphens=False), " " * NAME_WIDTH + text])
