"""What a report says and in which order, whatever it is written as."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fastloop.reporting.figures import Picture, pictures
from fastloop.reporting.scaling import ranks_sheet
from fastloop.reporting.sheets import (
    Sheet,
    benchmark_sheet,
    machine_sheet,
    notes_sheet,
    seed_sheets,
    settings_sheet,
    unranked_sheet,
)
from fastloop.reporting.summary import Comparison, Group, summarize
from fastloop.reporting.verdict import verdict
from fastloop.result import Result


@dataclass(frozen=True, kw_only=True)
class Section:
    """One benchmark of one group: its ranking and its pictures."""

    heading: str
    sheet: Sheet
    pictures: tuple[Picture, ...]


@dataclass(frozen=True, kw_only=True)
class Document:
    """The report, from top to bottom."""

    title: str
    subtitle: str
    verdicts: tuple[tuple[str, str], ...]
    """(which benchmark of which data, the paragraph)."""
    overview: tuple[Sheet, ...]
    sections: tuple[Section, ...]
    appendix: tuple[Sheet, ...]


def compose(results: Sequence[Result], baseline: str = "") -> Document:
    """The report on these results; ratios are told against the baseline."""
    groups = summarize(results, baseline)
    several = len(groups) > 1
    parts = [(group, one) for group in groups for one in group.comparisons]
    ranks = ranks_sheet(results)
    maybe = (notes_sheet(results), unranked_sheet(results))
    return Document(
        title=_title(groups, results),
        subtitle=_subtitle(results),
        verdicts=tuple((_heading(group, one, several), verdict(one)) for group, one in parts),
        overview=(*seed_sheets(groups), *([ranks] if ranks else [])),
        sections=tuple(_section(group, one, several) for group, one in parts),
        appendix=(
            *(sheet for sheet in maybe if sheet),
            machine_sheet(results),
            settings_sheet(results),
        ),
    )


def _title(groups: Sequence[Group], results: Sequence[Result]) -> str:
    data = [group.title for group in groups] or [one.dataset for one in results]
    return "Data loaders on " + ", ".join(dict.fromkeys(data))


def _subtitle(results: Sequence[Result]) -> str:
    """Samples, batch size, epochs, trials, device, sweep: one value or all that occur."""
    told = {
        "samples": [f"{one.num_samples:,}" for one in results if one.num_samples],
        "batch size": [one.params.get("batch_size") for one in results],
        "epochs a trial": [one.params.get("epochs") for one in results],
        "trials": [one.params.get("trials") for one in results],
        "device": [one.tags.get("device") for one in results if one.status == "FINISHED"],
        "sweep": [one.tags.get("sweep") for one in results],
    }
    parts = [
        f"{name} {' and '.join(str(value) for value in dict.fromkeys(values))}"
        for name, values in told.items()
        if any(value is not None for value in values)
    ]
    return " · ".join(parts)


def _heading(group: Group, one: Comparison, several: bool) -> str:
    return f"{one.benchmark.capitalize()}, {group.title}" if several else one.benchmark.capitalize()


def _section(group: Group, one: Comparison, several: bool) -> Section:
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", group.title).strip("-") + "-" if several else ""
    return Section(
        heading=f"{_heading(group, one, several)}: ranking",
        sheet=benchmark_sheet(one),
        pictures=tuple(pictures(one, prefix)),
    )
