"""Prints a file of `fastloop suite` as Markdown, a table for each workload.

python -m experiments.suite.table FILE
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from fastloop.suite.suite_file import Cell, SuiteFile, load_suite


def tables(document: SuiteFile) -> Iterator[str]:
    """The lines of all tables; in each the rows come in the order of their ratios."""
    for workload in document.workloads:
        cells = [cell for cell in document.cells if cell.workload == workload.name]
        measured = [cell for cell in cells if cell.figures is not None]
        yield f"\n{workload.title}: {len(measured)} of {len(cells)} rows have figures\n"
        yield "| row | times the fastest | rank | share of the limit | first batch | peak memory |"
        yield "|---|---|---|---|---|---|"
        for cell in sorted(measured, key=_ratio):
            yield _row(cell)


def _ratio(cell: Cell) -> float:
    return cell.figures.ratio or float("inf") if cell.figures else float("inf")


def _row(cell: Cell) -> str:
    assert cell.figures is not None
    figures = cell.figures
    ratio = "" if figures.ratio is None else f"{figures.ratio:.3g}"
    if figures.ratio_interval:
        low, high = figures.ratio_interval
        ratio += f" ({low:.3g} to {high:.3g})"
    rank = "" if figures.rank is None else f"{figures.rank}{' =' if figures.tied_with else ''}"
    share = "" if figures.limit_share is None else f"{100 * figures.limit_share:.2g} %"
    first = "" if cell.first_batch_s is None else f"{1e3 * cell.first_batch_s:.3g} ms"
    peak = "" if cell.peak_pss_mib is None else f"{cell.peak_pss_mib:,.0f} MiB"
    return f"| {cell.label} | {ratio} | {rank} | {share} | {first} | {peak} |"


if __name__ == "__main__":
    print("\n".join(tables(load_suite(Path(sys.argv[1])))))
