"""Compose the `Document` of a report: its content from top to bottom, for every output format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from fastloop.core.explanation import Explanation
from fastloop.core.result import Result
from fastloop.reporting.header import describe_setup, load_lines
from fastloop.reporting.outcome_sentences import verdict
from fastloop.reporting.pictures import Picture, pictures, pictures_of_ladders
from fastloop.reporting.ranks_table import ranks_table
from fastloop.reporting.report_tables import (
    Table,
    caveats_table,
    explanations_of,
    gains_table,
    machine_table,
    not_ranked_table,
    overview_tables,
    parts_table,
    ranking_table,
    settings_table,
    shares_table,
)
from fastloop.reporting.short_names import short_names
from fastloop.reporting.summary import Comparison, JobGroup, summarize
from fastloop.reporting.sweep_files import profiles_table, stores_table

Timelines = Mapping[tuple[str | None, str], bytes]
"""(sweep, name) of a job -> its timeline as an <svg> element."""
NO_TIMELINES: Timelines = MappingProxyType({})
"""The timelines of a report without any."""


class Paragraph(NamedTuple):
    """A paragraph of a report, under its heading."""

    heading: str
    text: str


class Timeline(NamedTuple):
    """The picture of an explained job's epoch, under its heading."""

    heading: str
    svg: bytes
    """The picture as an <svg> element."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """Ranking and pictures of one benchmark of one group of jobs."""

    heading: str
    table: Table
    """The ranking of the group's jobs."""
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """Content of a report, from top to bottom."""

    title: str
    """Names of the data on which loaders were measured."""
    subtitle: str
    """A line with the settings of the jobs, such as samples, batch size and device."""
    machine_load: tuple[str, ...]
    """Lines on the load by other programs, one for each machine."""
    verdicts: tuple[Paragraph, ...]
    """The verdict on each explained job, then on each benchmark. A heading names the job, or else
    the benchmark and, if there are several groups of jobs, the group."""
    first_pictures: tuple[Picture, ...]
    """The picture of explained jobs, if any, and the first picture of each section. They are shown
    below the verdicts, and not in the sections."""
    overview: tuple[Table, ...]
    """Tables about several jobs or benchmarks, such as shares, means and ranks."""
    sections: tuple[Section, ...]
    """A section for each benchmark of each group of jobs."""
    timelines: tuple[Timeline, ...]
    """Timelines of explained jobs; a job without a timeline is left out."""
    appendix: tuple[Table, ...]
    """Tables at the end, such as settings and machines."""


def compose_document(
    results: Sequence[Result], baseline: str = "", timelines: Timelines = NO_TIMELINES
) -> Document:
    """Compose the report on these results.

    baseline: name of the job or loader to which ratios refer; empty: see `summarize`. timelines:
    timelines of explained jobs.
    """
    groups = [_sort_benchmarks(group) for group in summarize(results, baseline)]
    has_groups = len(groups) > 1
    compared = [(group, comparison) for group in groups for comparison in group.comparisons]
    sections = [_section(group, comparison, has_groups) for group, comparison in compared]
    ranks = ranks_table(results)
    appendix = [
        parts_table(results),
        caveats_table(results),
        not_ranked_table(results),
        stores_table(results),
        profiles_table(results),
    ]
    return Document(
        title=_title(groups, results),
        subtitle=describe_setup(results),
        machine_load=tuple(load_lines(results)),
        verdicts=(
            *explanation_paragraphs(results),
            *(
                Paragraph(_heading(group, comparison, has_groups), verdict(comparison))
                for group, comparison in compared
            ),
        ),
        first_pictures=(
            *pictures_of_ladders(results),
            *(section.pictures[0] for section in sections),
        ),
        # If there is a single group, the means would repeat its ranking.
        overview=(
            *(table for table in (shares_table(results), gains_table(results)) if table),
            *(overview_tables(groups) if has_groups else []),
            *([ranks] if ranks else []),
        ),
        sections=tuple(replace(section, pictures=section.pictures[1:]) for section in sections),
        timelines=tuple(timelines_of(results, timelines)),
        appendix=(
            *(table for table in appendix if table),
            machine_table(results),
            settings_table(results),
        ),
    )


def _sort_benchmarks(group: JobGroup) -> JobGroup:
    """The group with benchmarks that run a model first, because users wait for these times."""
    ordered = sorted(group.comparisons, key=lambda comparison: comparison.benchmark == "traversal")
    return replace(group, comparisons=tuple(ordered))


def _title(groups: Sequence[JobGroup], results: Sequence[Result]) -> str:
    """The title of the report; if no job has finished, it names the datasets of all jobs."""
    data = [group.title for group in groups] or [result.dataset for result in results]
    return "Data loaders on " + ", ".join(dict.fromkeys(data))


def _heading(group: JobGroup, comparison: Comparison, has_groups: bool) -> str:
    """The name of a benchmark, with the title of its group if there are several groups."""
    benchmark = comparison.benchmark.capitalize()
    return f"{benchmark}, {group.title}" if has_groups else benchmark


def _section(group: JobGroup, comparison: Comparison, has_groups: bool) -> Section:
    """The ranking and the pictures of a benchmark of a group.

    has_groups: True if there are several groups. Names of pictures then contain the group's title.
    """
    # The prefix becomes a part of file names and of ids.
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", group.title).strip("-") + "-" if has_groups else ""
    heading = _heading(group, comparison, has_groups)
    return Section(
        heading=f"{heading}: ranking",
        table=ranking_table(comparison),
        pictures=tuple(pictures(comparison, heading, prefix)),
    )


def explanation_paragraphs(results: Sequence[Result]) -> list[Paragraph]:
    """A paragraph with the sentences of the verdict for each job that was explained."""
    return [
        Paragraph(f"Why, {label}: {explanation.verdict.word}", _verdict_text(explanation))
        for label, explanation in explanations_of(results)
    ]


def timelines_of(results: Sequence[Result], timelines: Timelines) -> Iterator[Timeline]:
    """Yield the timelines of explained jobs; a job without a timeline is left out."""
    names = short_names(results)
    for result in results:
        svg = timelines.get((result.tags.get("sweep"), result.name))
        if result.explanation and svg:
            yield Timeline(f"Timeline, {names[result.name]}", svg)


def _verdict_text(explanation: Explanation) -> str:
    """The sentences of the verdict, and the command of the best change that was tried."""
    text = explanation.verdict.text
    # There is no full stop after a command, which a reader may copy.
    best = explanation.best
    return f"{text} Best change that was tried: {best.command}" if best else text
