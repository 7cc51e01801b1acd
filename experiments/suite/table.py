"""Print a file of `fastloop suite` as Markdown, with a table for each workload.

python -m experiments.suite.table FILE
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from fastloop.suite.suite_file import Cell, SuiteFile, load_suite


def tables(document: SuiteFile) -> Iterator[str]:
    """The lines of all tables. The rows of a table are sorted by their ratios."""
    for workload in document.workloads:
        cells = [cell for cell in document.cells if cell.workload == workload.name]
        measured = [cell for cell in cells if cell.figures is not None]
        yield f"\n{workload.title}: {len(measured)} of {len(cells)} rows have figures\n"
        yield "| row | times the fastest | rank | limit, % | first batch, ms | memory, MiB |"
        yield "|---|---|---|---|---|---|"
        for cell in sorted(measured, key=_ratio):
            yield _row(cell)


def _ratio(cell: Cell) -> float:
    return cell.figures.ratio or float("inf") if cell.figures else float("inf")


def _row(cell: Cell) -> str:
    assert cell.figures is not None
    figures = cell.figures
    ratio = _show(figures.ratio)
    if figures.ratio_interval:
        low, high = map(_show, figures.ratio_interval)
        ratio += f" ({low} to {high})"
    rank = "" if figures.rank is None else f"{figures.rank}{' =' if figures.tied_with else ''}"
    share, first = _show(figures.limit_share, 100), _show(cell.first_batch_s, 1e3)
    return f"| {cell.label} | {ratio} | {rank} | {share} | {first} | {_show(cell.peak_pss_mib)} |"


def _show(value: float | None, factor: float = 1.0) -> str:
    """The number with three digits, or without decimals if it is larger; empty for None."""
    if value is None:
        return ""
    return f"{value * factor:,.0f}" if value * factor >= 100 else f"{value * factor:.3g}"


if __name__ == "__main__":
    print("\n".join(tables(load_suite(Path(sys.argv[1])))))
