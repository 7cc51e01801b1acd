"""Charts with a horizontal strip for each job: seconds, waits, share of the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fastloop.core import stats
from fastloop.reporting.charts.style import (
    INK,
    VERMILLION,
    WIDTH_IN,
    set_log_ticks,
    wrap_label,
)
from fastloop.reporting.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STRIP_IN = 0.3
"""Height of a strip in inches."""
LABEL_WIDTH = 26
"""Longest line of a strip's label, in characters."""
SHORTEST_WAIT_MS = 1e-4
"""Value drawn for a measured wait of 0, which a logarithmic axis can't show."""


def draw_seconds(rows: Sequence[Row]) -> Figure:
    """Bars of the median seconds per trial, with 95 % intervals."""
    figure, axes = _strips(rows, "seconds")
    medians = [row.median for row in rows]
    intervals = [row.interval or (row.median, row.median) for row in rows]
    # with few trials an interval may be so wide that the bars would be too short to see
    edge = min(1.04 * max(high for _, high in intervals), 3 * max(medians))
    colours = [row.colour for row in rows]
    axes.barh(range(len(rows)), medians, height=0.62, color=colours, alpha=0.55, linewidth=0)
    for place, (row, (low, high)) in enumerate(zip(rows, intervals, strict=True)):
        axes.plot([low, high], [place, place], color=INK, linewidth=1.4, solid_capstyle="butt")
        if high > edge:
            axes.plot(edge, place, ">", color=INK, markersize=5, clip_on=False)
        _write_value(axes, place, f"{row.median:.3g}")
    axes.set_xlim(0, edge)
    _set_grid(axes)
    return figure


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
        _write_value(axes, place, f"{middle:.2g}" if middle < 99.5 else f"{middle:.0f}")
    axes.axvline(100, color=VERMILLION, linewidth=1.2, linestyle=(0, (4, 2)))
    axes.set_xlim(0, 1.04 * max(100.0, *largest))
    _set_grid(axes)
    return figure


def _strips(rows: Sequence[Row], xlabel: str) -> tuple[Figure, Any]:
    """A figure and its axes, with a labelled strip for each row, the first on top."""
    figure = Figure(figsize=(WIDTH_IN, 0.62 + STRIP_IN * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    labels = [wrap_label(row.label, LABEL_WIDTH) for row in rows]
    has_two_lines = any("\n" in label for label in labels)
    axes.set_yticks(range(len(rows)), labels, fontsize=8 if has_two_lines else 9)
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
