"""Render the page of loaders, a static file of all rounds and machines that needs no network.

A round is a measurement of the suite, or of some of its loaders, on one or several machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fastloop.core.number_text import show_fine_percent, significant
from fastloop.reporting.page import render_page
from fastloop.suite.build_suite_file import OTHER_DATA
from fastloop.suite.round_agreement import Agreement, find_agreement, groups_of_both
from fastloop.suite.round_files import LoadedRound, best_of_machines
from fastloop.suite.suite_file import Cell

TEMPLATE = Path(__file__).with_name("loaders.html.jinja")
YEAR_MS = 365 * 24 * 3600 * 1000
"""Milliseconds of a year; a cell that was measured longer ago is grey."""
WORST_RATIO = 30.0
"""Ratios of this and more have the last colour of the scale."""
OTHER_ROUND = "it was measured in another round than the rows that have ranks"
"""The reason why a cell is shown without its rank."""
BEST_HUE, WORST_HUE = 150, 15
"""Ends of the scale of colours: green and red."""


@dataclass(frozen=True, kw_only=True)
class TwoRounds:
    """Two complete rounds of a machine, and how far they agree."""

    machine: str
    before: LoadedRound
    now: LoadedRound
    agreement: Agreement


@dataclass(frozen=True, kw_only=True)
class ShownCell:
    """A cell with the texts that the page shows."""

    cell: Cell
    machine: str
    """Name of the machine."""
    round: str
    """Name of the round in which the cell was measured."""
    scope: str
    """`full` or `quick`, the suite of that round."""
    code_url: str
    """Address of the option's code."""
    is_old: bool
    """True if the cell was measured more than a year ago."""

    @property
    def memory(self) -> str:
        """Peak of memory in MiB; empty if it was not measured."""
        peak_mib = self.cell.peak_pss_mib
        return "" if peak_mib is None else f"{peak_mib:,.0f}"

    @property
    def first_batch(self) -> str:
        """Milliseconds from opening the loader to its first batch; empty if not measured."""
        seconds = self.cell.first_batch_s
        return "" if seconds is None else significant(1e3 * seconds)

    @property
    def shuffle(self) -> str:
        """Mean distance of a sample from its stored place: 0 in stored order, 1 if uniform.

        Empty if it was not measured.
        """
        shuffling = self.cell.shuffling
        return "" if shuffling is None else f"{shuffling.distance:.2f}"

    @property
    def rank(self) -> str:
        """Rank among the cells of the workload, with a sign if other cells have the same rank.

        Empty without a rank.
        """
        figures = self.cell.figures
        if figures is None or figures.rank is None:
            return ""
        return f"{figures.rank}{' =' if figures.tied_with else ''}"

    @property
    def tie(self) -> str:
        """A tooltip with the labels of the other cells of this rank; empty if there are none."""
        figures = self.cell.figures
        return f"tied with {', '.join(figures.tied_with)}" if figures and figures.tied_with else ""

    @property
    def ratio(self) -> str:
        """Seconds relative to the first cell in the ranking of the workload; empty if there is no
        ratio."""
        figures = self.cell.figures
        return "" if figures is None or figures.ratio is None else _ratio_text(figures.ratio)

    @property
    def interval(self) -> str:
        """95 % interval of the ratio; empty if there is none."""
        interval = self.cell.figures and self.cell.figures.ratio_interval
        return " to ".join(map(_ratio_text, interval)) if interval else ""

    @property
    def hue(self) -> int | None:
        """Hue of the ratio's colour, in degrees; None without a ratio."""
        figures = self.cell.figures
        return None if figures is None or figures.ratio is None else _hue(figures.ratio)

    @property
    def rate(self) -> str:
        """Samples a second; empty without figures."""
        figures = self.cell.figures
        return significant(figures.samples_per_s) if figures else ""

    @property
    def share(self) -> str:
        """Share of the machine's limit in percent; empty if the limit was not measured."""
        share = self.cell.figures and self.cell.figures.limit_share
        return "" if share is None else show_fine_percent(share)


def render_site(
    rounds: list[LoadedRound], now_ms: int, code_url: str, has_claims: bool = False
) -> str:
    """Render the page, with one cell for each machine, workload and row.

    The newest cell is shown, even if it has no figures. An older cell with a rank may be kept in
    its place, see `_is_kept`. Cells of different rounds are not ranked together.

    rounds: the rounds of all machines, oldest first. now_ms: the present, in milliseconds since
    1970. code_url: the address to which the path of an option's code is added. has_claims: True if
    there is a page of claims beside this page.
    """
    titles: dict[str, str] = {}
    for each in rounds:
        titles |= {workload.name: workload.title for workload in each.document.workloads}
    chosen: dict[tuple[str, str, str], ShownCell] = {}
    for each, cell in _cells_to_show(rounds):
        place = (each.machine, cell.workload, cell.label)
        if not _is_kept(chosen.get(place), cell):
            chosen[place] = _show(each, cell, now_ms, code_url)
    cells = sorted(chosen.values(), key=lambda shown: _sort_key(shown, [*titles]))
    return render_page(
        TEMPLATE,
        cells=cells,
        titles=titles,
        machines=[*best_of_machines(rounds).values()],
        agreements=[*_agreements(rounds)],
        labels=_labels_of_machines(cells),
        by_place={(each.machine, each.cell.label, each.cell.workload): each for each in cells},
        filled=sum(each.cell.figures is not None for each in cells),
        has_claims=has_claims,
    )


def _labels_of_machines(cells: list[ShownCell]) -> dict[str, list[str]]:
    """Machine -> the labels of its cells, sorted."""
    labels: dict[str, set[str]] = {}
    for shown in cells:
        labels.setdefault(shown.machine, set()).add(shown.cell.label)
    return {machine: sorted(each) for machine, each in labels.items()}


def _is_kept(before: ShownCell | None, cell: Cell) -> bool:
    """True if the older cell stays on the page, because it has a rank and the newer one has none.

    Otherwise a later round of only some loaders would take away the rank.
    before: the older cell; None: there is none. cell: the newer cell.
    """
    if before is None or not before.rank or before.is_old:
        return False
    # A loader that has failed, or delivers other data, has lost its rank: the reader must see this.
    if cell.figures is None or cell.unranked_reason == OTHER_DATA:
        return False
    return cell.figures.rank is None


def _agreements(rounds: list[LoadedRound]) -> Iterator[TwoRounds]:
    """The agreement of the newest two complete rounds of each machine that has two."""
    complete = [each for each in rounds if each.document.scope == "full" and each.document.complete]
    for machine in dict.fromkeys(each.machine for each in complete):
        newest = [each for each in complete if each.machine == machine][-2:]
        if len(newest) < 2:
            continue
        before, now = newest
        # Two rounds of different workloads have no row in common.
        if groups := groups_of_both([before.document, now.document]):
            agreement = find_agreement([*groups.values()])
            yield TwoRounds(machine=machine, before=before, now=now, agreement=agreement)


def _cells_to_show(rounds: list[LoadedRound]) -> Iterator[tuple[LoadedRound, Cell]]:
    """The cells of all rounds, oldest first.

    For each machine and workload, only the cells of one round keep their ranks and ratios. This is
    the newest complete round or, if none is complete, the newest one. The quick suite has less
    data, so its cells are left out if the full suite was measured.
    """
    full = {
        (each.machine, workload.name)
        for each in rounds
        if each.document.scope == "full"
        for workload in each.document.workloads
    }
    shown = [
        (each, cell)
        for each in rounds
        for cell in each.document.cells
        if each.document.scope == "full" or (each.machine, cell.workload) not in full
    ]
    # Of several rounds with one key the last one counts, so complete rounds come last.
    with_ranks = {
        (each.machine, cell.workload): each
        for each, cell in sorted(shown, key=lambda pair: pair[0].document.complete)
        if cell.figures and cell.figures.rank is not None
    }
    for each, cell in shown:
        has_ranks = with_ranks.get((each.machine, cell.workload)) is each
        yield each, cell if has_ranks else _without_rank(cell)


def _without_rank(cell: Cell) -> Cell:
    """The cell without rank and ratio, and with a reason for that."""
    if cell.figures is None:
        return cell
    no_rank = {"rank": None, "tied_with": [], "ratio": None, "ratio_interval": None}
    reason = cell.unranked_reason or OTHER_ROUND
    return replace(cell, figures=replace(cell.figures, **no_rank), unranked_reason=reason)


def _sort_key(shown: ShownCell, workloads: list[str]) -> tuple:
    """The key that sorts cells by machine, workload and seconds; those without figures are last.

    workloads: names of the workloads, in the order of the page.
    """
    figures = shown.cell.figures
    seconds = figures.seconds if figures else math.inf
    return shown.machine, workloads.index(shown.cell.workload), seconds, shown.cell.label


def _show(loaded: LoadedRound, cell: Cell, now_ms: int, code_url: str) -> ShownCell:
    """The cell of this round with its texts. now_ms, code_url: as in `render_site`."""
    return ShownCell(
        cell=cell,
        machine=loaded.machine,
        round=loaded.round,
        scope=loaded.document.scope,
        code_url=f"{code_url.rstrip('/')}/{cell.code}",
        is_old=cell.measured_ms is not None and now_ms - cell.measured_ms > YEAR_MS,
    )


def _ratio_text(ratio: float) -> str:
    """A ratio with two decimals at most: 1.02, 15.1, 2,583."""
    # The limits are below 10 and 100, because 9.996 would become 10.00, and 99.96 100.0.
    decimals = 2 if ratio < 9.995 else 1 if ratio < 99.95 else 0
    return f"{ratio:,.{decimals}f}"


def _hue(ratio: float) -> int:
    """Hue in degrees of a ratio, on the scale from 1 to WORST_RATIO, by the ratio's logarithm."""
    part = math.log(max(1.0, ratio)) / math.log(WORST_RATIO)
    return round(BEST_HUE + (WORST_HUE - BEST_HUE) * min(1.0, part))
