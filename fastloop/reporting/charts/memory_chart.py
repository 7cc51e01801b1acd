"""Chart of throughput against memory, with a labelled point for each job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fastloop.reporting.charts.style import FAINT, WIDTH_IN, set_log_ticks, shorten
from fastloop.reporting.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABEL_IN = 0.17
"""Distance of the labels' lines in inches."""
AROUND_IN = 0.55
"""Height of the figure around its axes in inches."""
LONGEST_LABEL = 30
"""Longest label in characters."""


def draw_throughput_against_memory(rows: Sequence[Row]) -> Figure:
    """Scatter plot of samples/s over peak memory in MiB; a line joins each point and its label.

    The samples/s axis is logarithmic if the fastest job has over 8 times the rate of the slowest.
    """
    height_in = max(3.0, AROUND_IN + LABEL_IN * len(rows))
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    axes = figure.add_subplot()
    rates = [row.samples_per_s for row in rows]
    memory = [row.peak_mib or 0.0 for row in rows]
    if max(rates) > 8 * min(rates):
        axes.set_yscale("log")
        axes.set_ylim(min(rates) / 1.3, max(rates) * 1.3)
        set_log_ticks(axes.yaxis, rates, max_ticks=7)
    else:
        axes.set_ylim(0, 1.08 * max(rates))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    margin = max(0.1 * (max(memory) - min(memory)), 0.02 * max(memory))
    axes.set_xlim(min(memory) - margin, max(memory) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.grid()
    axes.set_xlabel("peak memory, MiB")
    axes.set_ylabel("samples/s" + (", logarithmic" if axes.get_yscale() == "log" else ""))
    for row, x, y in zip(rows, memory, rates, strict=True):
        axes.plot(x, y, "o", color=row.colour, markersize=5.5, markeredgewidth=0, zorder=3)
    _write_labels(axes, rows, list(zip(memory, rates, strict=True)), height_in)
    return figure


def _write_labels(
    axes: Axes, rows: Sequence[Row], points: Sequence[tuple[float, float]], height_in: float
) -> None:
    """Write the labels into a column at the right, each as close to the height of its point as the
    others allow."""
    # heights on the axes, from 0 to 1, as the scale may be logarithmic; the limits are set by now
    to_axes = axes.transAxes.inverted()
    heights = [float(to_axes.transform(axes.transData.transform(point))[1]) for point in points]
    order = sorted(range(len(rows)), key=lambda index: heights[index])
    column = spread([heights[index] for index in order], LABEL_IN / (height_in - AROUND_IN))
    for index, height in zip(order, column, strict=True):
        axes.annotate(
            shorten(rows[index].label, LONGEST_LABEL), points[index], (1.06, height),
            textcoords="axes fraction", va="center", fontsize=8.5, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": FAINT, "linewidth": 0.8, "shrinkA": 1,
                        "shrinkB": 3, "relpos": (0, 0.5)},
        )  # fmt: skip


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """The ascending heights, moved as little as keeps them apart; the last at most at 1."""
    # first upwards from the lowest; labels that would leave the axes at the top then push the ones
    # below them down again
    apart: list[float] = []
    for height in heights:
        apart.append(max(height, apart[-1] + distance) if apart else height)
    last = len(apart) - 1
    return [min(height, 1 - distance * (last - place)) for place, height in enumerate(apart)]
