"""Charts with a horizontal strip for each job: seconds, waits, share of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fastloop.core import stats
from fastloop.core.number_text import significant, unit_of_all
from fastloop.core.ranking import NO_RANK
from fastloop.reporting.charts.style import (
    INK,
    VERMILLION,
    WIDTH_IN,
    set_log_ticks,
    wrap_label,
)
from fastloop.reporting.report_tables import WIDEST
from fastloop.reporting.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRIP_IN = 0.3
"""Height of a strip in inches."""
LABEL_WIDTH = 26
"""Longest line of a strip's label, in characters."""
LOG_FROM = 20.0
"""An axis is logarithmic if the slowest job takes more than this many times as long as the
fastest."""
HEAD_IN = 0.3
"""Height of the headings of columns beside the axes."""
COLUMN_PT = 36
"""Width of a column of figures beside the axes, in points."""
SHORTEST_WAIT_MS = 1e-4
"""Value drawn for a measured wait of 0, which a logarithmic axis can't show."""


def draw_seconds(rows: Sequence[Row]) -> Figure:
    """A dot for each job's median with its 95 % interval, and its rank and ratio beside it.

    The axis is logarithmic if the slowest job takes over 20 times as long as the fastest.
    """
    medians = [row.median for row in rows]
    unit = unit_of_all(medians)
    # on a linear axis the fast jobs would lie on top of each other at 0
    is_log = max(medians) > LOG_FROM * min(medians)
    figure, axes = _strips(rows, unit.name + (", logarithmic" if is_log else " a trial"), HEAD_IN)
    ends = [end for row in rows for end in _interval_to_show(row)]
    low, high = unit.of(min(ends)), unit.of(max(ends))
    if is_log:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.3, high * 1.3)
        set_log_ticks(axes.xaxis, [low / 1.3, high * 1.3], max_ticks=6)
    else:
        axes.set_xlim(0, 1.06 * high)
    for place, row in enumerate(rows):
        bounds = [unit.of(end) for end in _interval_to_show(row)]
        axes.plot(bounds, [place, place], color=row.colour, linewidth=2.2, alpha=0.6,
                  solid_capstyle="butt", zorder=2)  # fmt: skip
        size = 8.5 if row.rank == 1 else 6.5
        axes.plot(unit.of(row.median), place, "o", color=row.colour, markersize=size,
                  markeredgecolor=INK if row.rank == 1 else row.colour, zorder=3)  # fmt: skip
    units = [significant(unit.of(row.median)) for row in rows]
    _write_columns(
        axes, [units, [_times_of_base(row) for row in rows], [_rank(row) for row in rows]]
    )
    for place, text in enumerate((unit.name, "speed", "rank")):
        _write_cell(axes, -0.95, place, text)
    _set_grid(axes)
    return figure


def _interval_to_show(row: Row) -> tuple[float, float]:
    """The interval of the median, or the median alone if the interval is unknown or too wide."""
    known = row.interval
    return known if known and known[1] <= WIDEST * known[0] else (row.median, row.median)


def _times_of_base(row: Row) -> str:
    """Speed of the job as a multiple of the baseline's."""
    return f"{significant(1 / row.ratio.estimate, 2)}\u00d7" if row.ratio else "1\u00d7"


def _rank(row: Row) -> str:
    return str(row.rank or NO_RANK)


def _write_columns(axes: Axes, columns: Sequence[Sequence[str]]) -> None:
    for column, texts in enumerate(columns):
        for place, text in enumerate(texts):
            _write_cell(axes, place, column, text)


def _write_cell(axes: Axes, place: float, column: int, text: str) -> None:
    """Write into one of the columns to the right of the axes."""
    axes.annotate(
        text, (1, place), (COLUMN_PT * (column + 1), 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", va="center", fontsize=8.5, annotation_clip=False,
    )  # fmt: skip


def draw_waits(rows: Sequence[Row]) -> Figure:
    """Boxes of the milliseconds waited for each batch, on a logarithmic axis."""
    figure, axes = _strips(rows, "milliseconds")
    waits = [[max(1e3 * wait, SHORTEST_WAIT_MS) for wait in row.waits_s] for row in rows]
    boxes = axes.boxplot(
        waits,
        positions=range(len(rows)),
        orientation="horizontal",
        whis=(5, 95),
        widths=0.5,
        manage_ticks=False,
        showcaps=False,
        patch_artist=True,
        boxprops={"alpha": 0.55, "linewidth": 0},
        whiskerprops={"color": INK, "linewidth": 0.9},
        medianprops={"color": INK, "linewidth": 1.6},
        flierprops={"marker": "o", "markersize": 2.6, "markerfacecolor": INK,
                    "markeredgewidth": 0, "alpha": 0.55},
    )  # fmt: skip
    for box, row in zip(boxes["boxes"], rows, strict=True):
        box.set_facecolor(row.colour)
    axes.set_xscale("log")
    set_log_ticks(axes.xaxis, [wait for job_waits in waits for wait in job_waits], max_ticks=8)
    _set_grid(axes)
    return figure


def draw_limit(rows: Sequence[Row]) -> Figure:
    """Bars of the median share of the limit in percent, with a dot for each trial."""
    figure, axes = _strips(rows, "% of the limit")
    largest = []
    for place, row in enumerate(rows):
        fractions = [trial.limit_fraction for trial in row.by_round.values()]
        shares = [100 * fraction for fraction in fractions if fraction is not None]
        middle = stats.median(shares)
        axes.barh(place, middle, height=0.62, color=row.colour, alpha=0.55, linewidth=0)
        axes.plot(shares, [place] * len(shares), ".", color=INK, markersize=4, markeredgewidth=0,
                  alpha=0.6)  # fmt: skip
        largest.append(max(shares))
        # from 99.5 on, two significant digits would be an exponent: 1e+02
        _write_value(axes, place, f"{middle:.2g}" if middle < 99.5 else f"{middle:.0f}")
    # the limit itself; replays of steps and lucky trials may exceed it
    axes.axvline(100, color=VERMILLION, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.set_xlim(0, 1.04 * max(100.0, *largest))
    _set_grid(axes)
    return figure


def _strips(rows: Sequence[Row], xlabel: str, above_in: float = 0.0) -> tuple[Figure, Any]:
    """A figure and its axes, with a labelled strip for each row, the first on top."""
    height_in = 0.62 + above_in + STRIP_IN * len(rows)
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.add_subplot()
    labels = [wrap_label(row.label, LABEL_WIDTH) for row in rows]
    has_two_lines = any("\n" in label for label in labels)
    axes.set_yticks(range(len(rows)), labels, fontsize=8 if has_two_lines else 9)
    # upside down, so that the first row is on top
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(xlabel)
    return figure, axes


def _write_value(axes: Axes, place: float, text: str) -> None:
    """Write a strip's value into the column to the right of the axes."""
    axes.annotate(
        text, (1, place), (42, 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", va="center", fontsize=8.5,
    )  # fmt: skip


def _set_grid(axes: Axes) -> None:
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(5))
