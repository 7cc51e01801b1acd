"""Chart of every trial over the rounds, with a panel for each job."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fastloop.reporting.charts.style import FAINT, WIDTH_IN, set_log_ticks, wrap_label
from fastloop.reporting.summary import Row

PANEL_IN = 1.15
"""Height of a panel in inches."""
TITLE_WIDTH = 29
"""Longest line of a panel's title, in characters."""


def draw_rounds(rows: Sequence[Row]) -> Figure:
    """Seconds of each trial by round: a panel for each job, with the other jobs in grey.

    The seconds axis is logarithmic if the slowest trial takes over 8 times as long as the fastest.
    """
    panel_rows = -(-len(rows) // 2)
    figure = Figure(figsize=(WIDTH_IN, 0.5 + PANEL_IN * panel_rows), layout="constrained")
    panels = figure.subplots(panel_rows, 2, sharex=True, sharey=True, squeeze=False)
    seconds = [length for row in rows for length in row.seconds]
    is_log = max(seconds) > 8 * min(seconds)
    for panel, row in zip(panels.flat, rows, strict=False):
        for other in rows:
            panel.plot(*_points(other), color=FAINT, linewidth=0.7, zorder=1)
        panel.plot(
            *_points(row), color=row.colour, linewidth=0.9, marker="o", markersize=3, zorder=2
        )
        panel.set_title(wrap_label(row.label, TITLE_WIDTH), fontsize=8.5, loc="left", pad=3)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for panel in panels.flat[len(rows) :]:
        panel.set_axis_off()
    first = panels[0][0]
    first.set_yscale("log" if is_log else "linear")
    if is_log:
        set_log_ticks(first.yaxis, seconds, max_ticks=5)
    else:
        first.set_ylim(0, 1.1 * max(seconds))
        first.yaxis.set_major_locator(MaxNLocator(3))
    for panel in panels.flat[: len(rows)]:
        panel.grid(axis="y")
    # Shared axes label the panels of the bottom row only. The last one may be empty, and then the
    # panel above it has to be labelled.
    for panel in panels.flat[max(0, len(rows) - 2) : len(rows)]:
        panel.tick_params(labelbottom=True)
    figure.supxlabel("round", fontsize=9)
    figure.supylabel("seconds" + (", logarithmic" if is_log else ""), fontsize=9)
    return figure


def _points(row: Row) -> tuple[list[int], list[float]]:
    """Round numbers, counted from 1, and the seconds of the job's trial in each round."""
    rounds = sorted(row.by_round)
    return [number + 1 for number in rounds], [row.by_round[number].seconds for number in rounds]
