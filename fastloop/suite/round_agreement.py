"""Compare two rounds of the suite on one machine: the ranks of the loaders, and their ratios.

A row is one loader with one configuration in a workload. The ratio of a row is the row's seconds,
relative to the seconds of the other rows of its workload.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from fastloop.suite.suite_file import SuiteFile

CLOSE = 0.1
"""Ratios agree if they differ by at most this share."""


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """A row of a workload with the figures of both rounds."""

    label: str
    """The name of the row: its loader and configuration."""
    ranks: tuple[int, int]
    """The row's rank in each round."""
    seconds: tuple[float, float]
    """The row's median seconds in each round."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Figures on the agreement of two rounds, over the rows of several workloads."""

    rows: int
    """The number of rows that both rounds rank."""
    equal_ranks: float
    """Share of rows with the same rank in both rounds."""
    near_ranks: float
    """Share of rows with ranks that are at most one apart."""
    kept_pairs: float
    """Share of the pairs of rows of a workload that are not ranked in opposite orders."""
    close_ratios: float
    """Share of rows with ratios that differ by at most CLOSE between the rounds."""
    median_change: float
    """Median of the factors, of at least 1, by which ratios differ between the rounds."""
    large_change: float
    """The 90th percentile of these factors."""


def rows_of_both(rounds: Sequence[SuiteFile], workload: str) -> list[ComparedRow]:
    """The rows of the workload that both rounds rank, sorted by their time in the first round."""
    first, second = (
        {
            cell.label: (cell.figures.rank, cell.figures.seconds)
            for cell in document.cells
            if cell.workload == workload and cell.figures and cell.figures.rank
        }
        for document in rounds
    )
    rows = [
        ComparedRow(
            label=label,
            ranks=(first[label][0], second[label][0]),
            seconds=(first[label][1], second[label][1]),
        )
        for label in first.keys() & second.keys()
    ]
    return sorted(rows, key=lambda row: row.seconds[0])


def groups_of_both(rounds: Sequence[SuiteFile]) -> dict[str, list[ComparedRow]]:
    """Name of a workload -> the rows that both rounds rank; workloads without rows are left out."""
    found = {each.name: rows_of_both(rounds, each.name) for each in rounds[0].workloads}
    return {name: rows for name, rows in found.items() if rows}


def find_agreement(groups: Sequence[Sequence[ComparedRow]]) -> Agreement:
    """Compute the agreement over all rows of these workloads.

    groups: the rows of each workload. Raises ValueError if there is no row.
    """
    rows = [row for group in groups for row in group]
    if not rows:
        raise ValueError("groups: no row; allowed: at least one")
    apart = [abs(row.ranks[0] - row.ranks[1]) for row in rows]
    pairs = sum(len(group) * (len(group) - 1) // 2 for group in groups)
    changes = sorted(change for group in groups if group for change in _ratio_changes(group))
    return Agreement(
        rows=len(rows),
        equal_ranks=apart.count(0) / len(rows),
        near_ranks=sum(each <= 1 for each in apart) / len(rows),
        kept_pairs=1 - sum(map(_count_reversed, groups)) / max(1, pairs),
        close_ratios=sum(change <= 1 + CLOSE for change in changes) / len(rows),
        median_change=statistics.median(changes),
        large_change=changes[int(0.9 * (len(changes) - 1))],
    )


def _ratio_changes(rows: Sequence[ComparedRow]) -> list[float]:
    """The factors, of at least 1, by which the rows' ratios differ between the rounds.

    The usual change of seconds, the median over the rows, is divided out. If the change of the
    fastest row were divided out, the noise of that row would affect all factors.
    """
    changes = [row.seconds[1] / row.seconds[0] for row in rows]
    usual = statistics.median(changes)
    return [max(change / usual, usual / change) for change in changes]


def _count_reversed(rows: Sequence[ComparedRow]) -> int:
    """Count the pairs of rows that the two rounds rank in opposite orders."""
    return sum(
        (one.ranks[0] - other.ranks[0]) * (one.ranks[1] - other.ranks[1]) < 0
        for one, other in combinations(rows, 2)
    )
