"""The content of a report, in order and independent of the output format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fastloop.core.result import Result
from fastloop.reporting.charts.picture import Picture, pictures
from fastloop.reporting.ranks import ranks_table
from fastloop.reporting.summary import Comparison, JobGroup, summarize
from fastloop.reporting.tables import (
    Table,
    machine_table,
    not_ranked_table,
    notes_table,
    overview_tables,
    ranking_table,
    settings_table,
)
from fastloop.reporting.verdict import verdict


@dataclass(frozen=True, kw_only=True)
class Section:
    """Ranking and pictures of one benchmark of one group of jobs."""

    heading: str
    table: Table
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """Content of a report, from top to bottom."""

    title: str
    subtitle: str
    verdicts: tuple[tuple[str, str], ...]
    """(heading, paragraph); the heading names the benchmark and, with several groups, the data."""
    overview: tuple[Table, ...]
    sections: tuple[Section, ...]
    appendix: tuple[Table, ...]


def compose_document(results: Sequence[Result], baseline: str = "") -> Document:
    """The report on these results; `baseline` is the job or loader that ratios refer to."""
    groups = summarize(results, baseline)
    several = len(groups) > 1
    parts = [(group, comparison) for group in groups for comparison in group.comparisons]
    ranks = ranks_table(results)
    optional = (notes_table(results), not_ranked_table(results))
    return Document(
        title=_title(groups, results),
        subtitle=_subtitle(results),
        verdicts=tuple(
            (_heading(group, comparison, several), verdict(comparison))
            for group, comparison in parts
        ),
        overview=(*overview_tables(groups), *([ranks] if ranks else [])),
        sections=tuple(_section(group, comparison, several) for group, comparison in parts),
        appendix=(
            *(table for table in optional if table),
            machine_table(results),
            settings_table(results),
        ),
    )


def _title(groups: Sequence[JobGroup], results: Sequence[Result]) -> str:
    data = [group.title for group in groups] or [result.dataset for result in results]
    return "Data loaders on " + ", ".join(dict.fromkeys(data))


def _subtitle(results: Sequence[Result]) -> str:
    """Samples, batch size, epochs, trials, device and sweep, each with all values that occur."""
    finished = [result for result in results if result.status == "FINISHED"]
    values_by_name = {
        "samples": [f"{result.num_samples:,}" for result in results if result.num_samples],
        "batch size": [result.params.get("batch_size") for result in results],
        "epochs per trial": [result.params.get("epochs") for result in results],
        "trials": [result.params.get("trials") for result in results],
        "device": [result.tags.get("device") for result in finished],
        "sweep": [result.tags.get("sweep") for result in results],
    }
    parts = [
        f"{name} {' and '.join(str(value) for value in dict.fromkeys(values))}"
        for name, values in values_by_name.items()
        if any(value is not None for value in values)
    ]
    return " · ".join(parts)


def _heading(group: JobGroup, comparison: Comparison, several: bool) -> str:
    benchmark = comparison.benchmark.capitalize()
    return f"{benchmark}, {group.title}" if several else benchmark


def _section(group: JobGroup, comparison: Comparison, several: bool) -> Section:
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", group.title).strip("-") + "-" if several else ""
    return Section(
        heading=f"{_heading(group, comparison, several)}: ranking",
        table=ranking_table(comparison),
        pictures=tuple(pictures(comparison, prefix)),
    )
