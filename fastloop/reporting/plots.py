"""How each picture is drawn: from rows of a comparison to a matplotlib figure, without pyplot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

from fastloop import stats
from fastloop.reporting.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN = 4.6
INK = "#1f1f1d"
FAINT = "#c9c9c4"
BLUE = "#0072b2"
VERMILLION = "#d55e00"
"""Okabe and Ito's: told apart by every kind of eye, also in grey."""
ROW_IN = 0.3


def _strips(rows: Sequence[Row], xlabel: str) -> tuple[Figure, Any]:
    """A figure with a labelled strip for each row, the first on top."""
    figure = Figure(figsize=(WIDTH_IN, 0.62 + ROW_IN * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(rows)), [row.label for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(xlabel)
    return figure, axes


def seconds(rows: Sequence[Row]) -> Figure:
    """Bars of medians with their intervals."""
    figure, axes = _strips(rows, "seconds")
    medians = [row.median for row in rows]
    ends = [row.interval or (row.median, row.median) for row in rows]
    # an interval of few trials may reach so far that no bar would be seen beside it
    edge = min(1.04 * max(high for _, high in ends), 3 * max(medians))
    axes.barh(range(len(rows)), medians, height=0.62, color=BLUE, alpha=0.55, linewidth=0)
    for place, (row, (low, high)) in enumerate(zip(rows, ends, strict=True)):
        axes.plot([low, high], [place, place], color=INK, linewidth=1.4, solid_capstyle="butt")
        if high > edge:
            axes.plot(edge, place, ">", color=INK, markersize=5, clip_on=False)
        _at_the_right(axes, place, f"{row.median:.3g}")
    axes.set_xlim(0, edge)
    _calm(axes)
    return figure


def over_rounds(rows: Sequence[Row]) -> Figure:
    """A panel a job, with every trial."""
    count = -(-len(rows) // 2)
    figure = Figure(figsize=(WIDTH_IN, 0.5 + 1.15 * count), layout="constrained")
    panels = figure.subplots(count, 2, sharex=True, sharey=True, squeeze=False)
    everything = [second for row in rows for second in row.seconds]
    wide = max(everything) > 8 * min(everything)
    for panel, row in zip(panels.flat, rows, strict=False):
        for other in rows:
            panel.plot(*_points(other), color=FAINT, linewidth=0.7, zorder=1)
        panel.plot(*_points(row), color=BLUE, linewidth=0.9, marker="o", markersize=3, zorder=2)
        panel.set_title(row.label, fontsize=9, loc="left", pad=3)
        panel.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    for panel in panels.flat[len(rows) :]:
        panel.set_axis_off()
    first = panels[0][0]
    first.set_yscale("log" if wide else "linear")
    if wide:
        _plain_log(first.yaxis, everything, room=5)
    else:
        first.set_ylim(0, 1.1 * max(everything))
        first.yaxis.set_major_locator(MaxNLocator(3))
    for panel in panels.flat[: len(rows)]:
        panel.grid(axis="y")
    for panel in panels.flat[max(0, len(rows) - 2) : len(rows)]:
        panel.tick_params(labelbottom=True)
    figure.supxlabel("round", fontsize=9)
    figure.supylabel("seconds" + (", logarithmic" if wide else ""), fontsize=9)
    return figure


def _points(row: Row) -> tuple[list[int], list[float]]:
    rounds = sorted(row.measured)
    return [number + 1 for number in rounds], [row.measured[number].seconds for number in rounds]


def waits(rows: Sequence[Row]) -> Figure:
    """Boxes of each batch's wait."""
    figure, axes = _strips(rows, "milliseconds")
    waits = [[max(1e3 * wait, 1e-4) for wait in row.waits_s] for row in rows]
    axes.boxplot(
        waits,
        positions=range(len(rows)),
        orientation="horizontal",
        whis=(5, 95),
        widths=0.5,
        manage_ticks=False,
        showcaps=False,
        patch_artist=True,
        boxprops={"facecolor": BLUE, "alpha": 0.55, "linewidth": 0},
        whiskerprops={"color": INK, "linewidth": 0.9},
        medianprops={"color": INK, "linewidth": 1.6},
        flierprops={"marker": "o", "markersize": 2.6, "markerfacecolor": INK,
                    "markeredgewidth": 0, "alpha": 0.55},
    )  # fmt: skip
    axes.set_xscale("log")
    everything = [wait for one in waits for wait in one]
    _plain_log(axes.xaxis, everything, room=8)
    _calm(axes)
    return figure


def against_memory(rows: Sequence[Row]) -> Figure:
    """A labelled point a job."""
    figure = Figure(figsize=(WIDTH_IN, 3.0), layout="constrained")
    axes = figure.add_subplot()
    rates = [row.samples_per_s for row in rows]
    memory = [row.peak_mib or 0.0 for row in rows]
    axes.scatter(memory, rates, s=26, color=BLUE, linewidth=0, zorder=3)
    if max(rates) > 8 * min(rates):
        axes.set_yscale("log")
        axes.set_ylim(min(rates) / 1.8, max(rates) * 1.8)
        _plain_log(axes.yaxis, rates, room=7)
    else:
        axes.set_ylim(0, 1.15 * max(rates))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    margin = max(0.25 * (max(memory) - min(memory)), 0.05 * max(memory))
    axes.set_xlim(min(memory) - margin, max(memory) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid()
    axes.set_xlabel("peak memory, MiB")
    axes.set_ylabel("samples/s" + (", logarithmic" if axes.get_yscale() == "log" else ""))
    labels = [row.label for row in rows]
    _place_labels(figure, axes, list(zip(memory, rates, labels, strict=True)))
    return figure


def _place_labels(figure: Figure, axes: Axes, points: list[tuple[float, float, str]]) -> None:
    """A label beside each point where it covers neither a point nor another label."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    spots = [axes.transData.transform((x, y)) for x, y, _ in points]
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in spots]
    frame = axes.get_window_extent()
    ways = [("left", 6, 0), ("right", -6, 0), ("center", 0, 10), ("center", 0, -10)]
    ways += [
        (side, dx, sign * step)
        for step in (9, 16, 24, 34)
        for sign in (1, -1)
        for side, dx in (("left", 6), ("right", -6))
    ]
    for x, y, text in points:
        for side, dx, dy in ways:
            label = axes.annotate(
                text, (x, y), (dx, dy), textcoords="offset points", ha=side, va="center",
                fontsize=8.5,
            )  # fmt: skip
            box = label.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1
            if (inside and box.count_overlaps(taken) == 0) or (side, dx, dy) == ways[-1]:
                taken.append(box)
                break
            label.remove()


def limit(rows: Sequence[Row]) -> Figure:
    """Bars of the share of the limit, with every trial."""
    figure, axes = _strips(rows, "% of the limit")
    ends = []
    for place, row in enumerate(rows):
        shares = [
            100 * one.samples_per_s / one.limit_samples_per_s for one in row.measured.values()
        ]
        middle = stats.median(shares)
        axes.barh(place, middle, height=0.62, color=BLUE, alpha=0.55, linewidth=0)
        axes.plot(shares, [place] * len(shares), ".", color=INK, markersize=4, markeredgewidth=0,
                  alpha=0.6)  # fmt: skip
        ends.append(max(shares))
        _at_the_right(axes, place, f"{middle:.2g}" if middle < 99.5 else f"{middle:.0f}")
    top = max(ends)
    if top > 40:
        axes.axvline(100, color=VERMILLION, linewidth=1.2, linestyle=(0, (4, 2)))
        top = max(top, 100.0)
    axes.set_xlim(0, 1.04 * top)
    _calm(axes)
    return figure


def _at_the_right(axes: Axes, place: float, text: str) -> None:
    """The row's number, in a column of its own."""
    axes.annotate(
        text, (1, place), (42, 0), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right", va="center", fontsize=8.5,
    )  # fmt: skip


def _calm(axes: Axes) -> None:
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(5))


def _plain_log(axis: Any, values: Sequence[float], room: int) -> None:
    """Ticks at each power of ten, written out, and between them as far as there is room."""
    decades = math.log10(max(values) / min(values))
    choices = [(1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)]
    fitting = [subs for subs in choices if len(subs) * decades <= room]
    axis.set_major_locator(LogLocator(subs=(fitting or choices[-1:])[0]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
