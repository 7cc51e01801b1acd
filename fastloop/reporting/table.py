"""The table that a sweep ends with: seed 000's form, a row a job, 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fastloop import stats
from fastloop.reporting.scaling import told_of_ranks
from fastloop.reporting.summary import Comparison, Group, Row, summarize
from fastloop.reporting.verdict import verdict
from fastloop.result import Result, world_size

WIDTH = 80
NAME_WIDTH = 23
CELL_WIDTH = 28
SECONDS = (".3f", ".2f", ".1f", ".0f", ".0e")
"""Forms of mean and deviation: the first that leaves them in their column."""
BESIDE = 2
"""As many benchmarks fit beside each other; others come below."""
LEGEND = (
    "mean (std) of the trials; equal ranks: not told apart; limit: share of what the machine can do"
)


def format_tables(results: Sequence[Result], baseline: str = "") -> str:
    """A table and a verdict for each data and amount of work, then what was not ranked, and why."""
    groups = summarize(results, baseline)
    parts = [_table(group) for group in groups]
    ranks = [_noted(result.name, told) for result in results for told in told_of_ranks(result)]
    flagged = [_noted(result.name, flag) for result in results for flag in result.flags]
    excused = [
        _noted(one.name, f"{one.status}: {one.status_reason}")
        for one in results
        if one.status != "FINISHED"
    ]
    parts += ["\n".join(lines) for lines in (ranks, flagged, excused) if lines]
    return "\n\n".join(parts)


def _table(group: Group) -> str:
    lines = textwrap.wrap(_title(group), WIDTH)
    for start in range(0, len(group.comparisons), BESIDE):
        lines += ["", *_side_by_side(group.comparisons[start : start + BESIDE])]
    lines += ["", *textwrap.wrap(LEGEND, WIDTH)]
    for one in group.comparisons:
        lines += ["", *textwrap.wrap(f"{one.benchmark}: {verdict(one)}", WIDTH)]
    return "\n".join(lines)


def _side_by_side(comparisons: Sequence[Comparison]) -> list[str]:
    """Their heading, and a row a job in the order of the first."""
    labels = dict.fromkeys(row.label for one in comparisons for row in one.rows)
    return [_heading(comparisons), *(_row(comparisons, label) for label in labels)]


def _title(group: Group) -> str:
    """The data, and every setting of note that all rows share."""
    first = group.results[0]
    parts = [f"{first.num_samples:,} samples"] if first.num_samples else []
    for name in ("batch_size", "epochs", "trials"):
        values = {result.params.get(name) for result in group.results}
        parts += [f"{name} {values.pop()}"] if len(values) == 1 else []
    sizes = {world_size(result) for result in group.results}
    parts += [f"{sizes.pop()} processes"] if len(sizes) == 1 and sizes != {1} else []
    devices = {result.tags["device"] for result in group.results}
    parts += [f"device {devices.pop()}"] if len(devices) == 1 else []
    return f"{group.title}: {', '.join(parts)}"


def _heading(comparisons: Sequence[Comparison]) -> str:
    cells = [f"{one.benchmark[:13]:>13}, s rank  limit" for one in comparisons]
    return " " * NAME_WIDTH + " ".join(cells)


def _row(comparisons: Sequence[Comparison], label: str) -> str:
    cells = [_cell(one.row(label)) for one in comparisons]
    return _beside(label, " ".join(cells).rstrip())


def _cell(row: Row | None) -> str:
    if row is None:  # this job did not run that benchmark
        return " " * CELL_WIDTH
    seconds = _first_within(16, [_mean_and_spread(row.seconds, form) for form in SECONDS])
    limits = [f"{100 * row.limit_fraction:{form}}" for form in (".1f", ".0f")]
    limit = _first_within(4, [*limits, ">999"])
    return f"{seconds:>16} {row.rank or '?':>4} {limit:>4} %"


def _mean_and_spread(seconds: Sequence[float], form: str) -> str:
    deviation = stats.std(seconds)
    spread = f" ({deviation:{form}})" if deviation is not None else ""
    return f"{stats.mean(seconds):{form}}{spread}"


def _first_within(width: int, texts: Sequence[str]) -> str:
    return next((one for one in texts if len(one) <= width), texts[-1])


def _noted(name: str, text: str) -> str:
    lines = textwrap.wrap(text, WIDTH - NAME_WIDTH, break_on_hyphens=False)
    return _beside(name, ("\n" + " " * NAME_WIDTH).join(lines))


def _beside(label: str, text: str) -> str:
    """The text in its column; a label that does not fit in its own has lines of its own."""
    if len(label) < NAME_WIDTH:
        return label + " " * (NAME_WIDTH - len(label)) + text
    return "\n".join(
        [*textwrap.wrap(label, WIDTH, break_on_hyphens=False), " " * NAME_WIDTH + text]
    )
