"""Figures of a workload's cells, computed from their windows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastloop.core import stats
from fastloop.core.ranking import Ranking, rank_jobs
from fastloop.suite.suite_file import Cell, Figures, SuiteFile


def with_figures(document: SuiteFile) -> SuiteFile:
    """The document with all figures computed anew."""
    cells, workloads = list(document.cells), []
    for workload in document.workloads:
        places = [place for place, cell in enumerate(cells) if cell.workload == workload.name]
        ranking = _rank([cells[place] for place in places])
        workloads.append(replace(workload, undetermined=ranking.undetermined))
        by_label = {cells[place].label: cells[place] for place in places}
        for place in places:
            cells[place] = replace(cells[place], figures=_figures(cells[place], by_label, ranking))
    return replace(document, cells=cells, workloads=workloads)


def _rank(cells: Sequence[Cell]) -> Ranking:
    ranked = {cell.label: _seconds(cell) for cell in cells if _may_have_rank(cell)}
    return rank_jobs(ranked)


def _may_have_rank(cell: Cell) -> bool:
    return bool(cell.windows) and not cell.null_reason and not cell.unranked_reason


def _seconds(cell: Cell) -> list[float]:
    return [cell.windows[number].seconds for number in sorted(cell.windows)]


def _figures(cell: Cell, cells: dict[str, Cell], ranking: Ranking) -> Figures | None:
    if cell.null_reason or not cell.windows:
        return None
    seconds, windows = _seconds(cell), cell.windows.values()
    shares = [each.limit_fraction for each in windows if each.limit_fraction is not None]
    ratio = None
    if _may_have_rank(cell):
        ratio = stats.ratio_or_range(seconds, _seconds(cells[ranking.order[0]]))
    is_first = ranking.order[:1] == (cell.label,)
    has_interval = ratio is not None and ratio.is_interval and not is_first
    rank = ranking.ranks.get(cell.label)
    tied = [name for name, other in ranking.ranks.items() if other == rank and name != cell.label]
    return Figures(
        seconds=stats.median(seconds),
        seconds_interval=stats.interval(seconds),
        samples_per_s=stats.median([each.samples_per_s for each in windows]),
        limit_share=stats.median(shares) if shares else None,
        ratio=ratio.estimate if ratio else None,
        ratio_interval=(ratio.low, ratio.high) if ratio and has_interval else None,
        rank=rank,
        tied_with=tied if rank is not None else [],
    )
