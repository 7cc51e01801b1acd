"""Make the table of jobs with several processes (ranks), for pages and as text."""

from __future__ import annotations

from collections.abc import Sequence

from fastloop.core import stats
from fastloop.core.number_text import significant
from fastloop.core.result import Result, measurements, world_size
from fastloop.core.tracked_metrics import metrics
from fastloop.reporting.report_tables import NOTHING, Table

HEAD = (
    "",
    "processes",
    "seconds by rank",
    "waits by rank, s",
    "straggler",
    "scaling",
    "gradients",
)
"""Heads of the columns; the first column has the name of the row."""
LEGEND = (
    "seconds: median over trials by rank; a trial takes as long as its slowest rank. waits: for "
    "batches and their placement, in one epoch. straggler: longest wait / mean wait. "
    "scaling: samples/s / (processes x samples/s of one process). gradients: share of a step, on "
    "batches that are already on the device, spent averaging gradients over the ranks."
)
"""Text that explains the columns."""
SHARES = ("scaling_efficiency", "sync_fraction")
"""Metrics of the columns scaling and gradients."""


def ranks_table(results: Sequence[Result]) -> Table | None:
    """The table, with a row for each benchmark of each job with several processes.

    The result is None if no such job has trials.
    """
    rows = [
        (f"{result.name}: {benchmark}", *_rank_cells(result, benchmark))
        for result in results
        if world_size(result) > 1 and result.trials
        for benchmark in result.trials[0].benchmarks
    ]
    if not rows:
        return None
    return Table(heading="Ranks", head=HEAD, rows=tuple(rows), legend=LEGEND)


def rank_lines(result: Result) -> list[str]:
    """The job's rows as text, a line for each benchmark.

    Empty for a job of one process, and for a job without trials.
    """
    if world_size(result) == 1 or not result.trials:
        return []
    return [
        f"{benchmark}: {', '.join(_describe_cells(_rank_cells(result, benchmark)))}"
        for benchmark in result.trials[0].benchmarks
    ]


def _describe_cells(cells: Sequence[str]) -> list[str]:
    """The cells of a row in words, without those that have no value."""
    templates = ("{} ranks", "{} s", "waits {} s", "straggler {}", "scaling {}", "gradients {}")
    return [
        text.format(cell) for text, cell in zip(templates, cells, strict=True) if cell != NOTHING
    ]


def _rank_cells(result: Result, benchmark: str) -> tuple[str, ...]:
    """The job's cells in this benchmark, one for each column of HEAD after the first."""
    figures = metrics(result)
    by_rank = zip(*[trial.rank_seconds for trial in measurements(result, benchmark)], strict=True)
    attribution = result.attribution.get(benchmark)
    waits = [rank.loading_s for rank in attribution.ranks] if attribution else []
    straggler_index = figures.get(f"{benchmark}/straggler_index")
    shares = [figures.get(f"{benchmark}/{name}") for name in SHARES]
    return (
        str(world_size(result)),
        _rank_seconds([stats.median(list(seconds)) for seconds in by_rank]),
        _rank_seconds(waits),
        NOTHING if straggler_index is None else f"{straggler_index:.2f}",
        *(NOTHING if share is None else f"{100 * share:.0f} %" for share in shares),
    )


def _rank_seconds(seconds: Sequence[float]) -> str:
    """The seconds of all ranks as one text; NOTHING if there are none."""
    return " ".join(significant(value) for value in seconds) or NOTHING
