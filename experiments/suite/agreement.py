"""Compare two rounds of `fastloop suite`: do they rank the loaders alike, and how far do they
differ?

    python -m experiments.suite.agreement FILE FILE

For each workload, and for all together, it prints the number of rows that both rounds rank; the
shares of rows with equal ranks and with ranks at most one apart; the share of pairs of rows that
the rounds do not rank in opposite orders; and the factor by which the second round's ratios differ
from the first round's.
"""

import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from fastloop.suite.suite_file import SuiteFile, load_suite

CLOSE = 0.1
"""Ratios agree if they differ by at most this share."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a workload with the figures of both rounds."""

    label: str
    ranks: tuple[int, int]
    seconds: tuple[float, float]


def rows_of_both(rounds: Sequence[SuiteFile], workload: str) -> list[Row]:
    """The rows of the workload that both rounds rank, sorted by their time in the first round."""
    figures = [
        {
            cell.label: cell.figures
            for cell in document.cells
            if cell.workload == workload and cell.figures and cell.figures.rank
        }
        for document in rounds
    ]
    first, second = figures
    rows = [
        Row(
            label=label,
            ranks=(first[label].rank, second[label].rank),
            seconds=(first[label].seconds, second[label].seconds),
        )
        for label in first.keys() & second.keys()
    ]
    return sorted(rows, key=lambda row: row.seconds[0])


def ratio_changes(rows: Sequence[Row]) -> list[float]:
    """The factors, of at least 1, by which the rows' ratios differ between the rounds, sorted.

    Ratios are relative to the median row. A ratio to the fastest row would change with the noise of
    that one row.
    """
    changes = [row.seconds[1] / row.seconds[0] for row in rows]
    usual = statistics.median(changes)
    return sorted(max(change / usual, usual / change) for change in changes)


def count_reversed(rows: Sequence[Row]) -> int:
    """The number of pairs of rows that the two rounds rank in opposite orders."""
    return sum(
        (one.ranks[0] - other.ranks[0]) * (one.ranks[1] - other.ranks[1]) < 0
        for one, other in combinations(rows, 2)
    )


def agreement(rounds: Sequence[SuiteFile]) -> Iterator[str]:
    """The lines of a Markdown table, a row for each workload and one for all."""
    columns = ("workload", "rows", "equal ranks", "at most one apart", "pairs not reversed")
    columns += (f"ratios within {CLOSE:.0%}", "median change of a ratio", "90th percentile")
    yield f"| {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|---|---|"
    rows = {each.name: rows_of_both(rounds, each.name) for each in rounds[0].workloads}
    for name, found in rows.items():
        if found:
            yield _line(name, [found])
    yield _line("all", [found for found in rows.values() if found])


def _line(name: str, groups: Sequence[Sequence[Row]]) -> str:
    rows = [row for group in groups for row in group]
    apart = [abs(row.ranks[0] - row.ranks[1]) for row in rows]
    pairs = sum(len(group) * (len(group) - 1) // 2 for group in groups)
    kept = pairs - sum(map(count_reversed, groups))
    changes = sorted(change for group in groups for change in ratio_changes(group))
    close = sum(change <= 1 + CLOSE for change in changes)
    most = changes[int(0.9 * (len(changes) - 1))]
    shares = (apart.count(0) / len(rows), sum(each <= 1 for each in apart) / len(rows))
    shown = [f"{share:.0%}" for share in (*shares, kept / max(1, pairs), close / len(rows))]
    figures = [f"{statistics.median(changes):.2f}", f"{most:.2f}"]
    return f"| {' | '.join([name, str(len(rows)), *shown, *figures])} |"


if __name__ == "__main__":
    print("\n".join(agreement([load_suite(Path(file)) for file in sys.argv[1:3]])))
