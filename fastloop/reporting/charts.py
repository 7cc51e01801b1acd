"""Draw the charts of a report with matplotlib, in one style.

Most charts compare the jobs of one benchmark; `draw_ladders` shows the parts of the jobs' epochs.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fastloop.core import stats
from fastloop.core.explanation import Ladder
from fastloop.core.number_text import WIDEST_INTERVAL, significant, unit_of_all
from fastloop.core.parts import Part
from fastloop.core.ranking import NO_RANK
from fastloop.reporting.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK = "#1f1f1d"
FAINT = "#c9c9c4"
VERMILLION = "#d55e00"
"""A colour of Okabe and Ito's palette, distinct for colour-blind readers and in grey."""
WIDTH_IN = 4.6
"""Width of every figure in inches."""
RC_PARAMS: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.size": 9.5,
    "text.color": INK,
    # Names may contain $, which matplotlib takes for mathematics.
    "text.parse_math": False,
    "axes.edgecolor": FAINT,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "ytick.left": False,
    "ytick.minor.left": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "fastloop",
    "savefig.facecolor": "none",
}
"""matplotlib settings for drawing and saving. SVG keeps text as text; a fixed salt makes the ids,
and with them the file, reproducible."""
STRIP_IN = 0.3
"""Height in inches of a strip, the horizontal band of a chart that shows one job."""
LABEL_WIDTH = 26
"""Longest line of a strip's label, in characters."""
LOG_FROM = 20.0
"""An axis is logarithmic if the slowest job takes more than this many times as long as the
fastest."""
HEAD_IN = 0.3
"""Height of the headings of columns next to the axes."""
COLUMN_PT = 36
"""Width of a column of figures next to the axes, in points."""
SHORTEST_WAIT_MS = 1e-4
"""Value drawn for a measured wait of 0, which a logarithmic axis can't show."""
PANEL_IN = 1.15
"""Height in inches of a panel, the small chart of one job in `draw_rounds`."""
TITLE_WIDTH = 29
"""Longest line of a panel's title, in characters."""
LABEL_IN = 0.17
"""Minimum distance between two labels of the scatter plot in inches."""
AROUND_IN = 0.55
"""Height of the scatter plot's figure around its axes in inches."""
LONGEST_LABEL = 30
"""Longest label in characters."""
BAR_IN = 0.42
"""Height of a bar with its space in inches."""
LADDER_AROUND_IN = 0.75
"""Height of the figure around its bars in inches."""
LADDER_LABEL_WIDTH = 22
"""Longest line of a bar's label, in characters."""
LETTER_SHARE = 0.021
"""Approximate width of a letter, as a share of the axis."""
ON_BARS = "#1a1a1a"
"""Colour of names on bars: not INK, which dark mode replaces, while the bars keep their colours."""
PART_COLOURS = {
    Part.STEP: "#c4c4be",
    Part.COPY: "#f0e442",
    Part.START_UP: "#cc79a7",
    Part.HAND_OFF: "#56b4e9",
    Part.COLLATE: "#009e73",
    Part.TRANSFORM: "#e69f00",
    Part.DECODE: "#d55e00",
    Part.READ: "#0072b2",
    Part.UNATTRIBUTED: "#8a8a86",
}
"""Okabe and Ito's palette: distinct for colour-blind readers."""


def set_log_ticks(axis: Any, values: Sequence[float], max_ticks: int) -> None:
    """Label powers of ten in plain digits, and steps between them if `max_ticks` allows."""
    decades = math.log10(max(values) / min(values))
    choices = [(1.0, 2.0, 5.0), (1.0, 3.0), (1.0,)]
    fitting = [subs for subs in choices if len(subs) * decades <= max_ticks]
    axis.set_major_locator(LogLocator(subs=(fitting or choices[-1:])[0]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def shorten(text: str, width: int) -> str:
    """The text, with an ellipsis in its middle if it is longer than `width` characters."""
    if len(text) <= width:
        return text
    return text[: width // 2] + "\u2026" + text[len(text) - (width - 1 - width // 2) :]


def wrap_label(text: str, width: int) -> str:
    """Wrap the text to at most two lines of `width` characters, and shorten it if it needs more.

    Lines end after a comma if they can.
    """
    # textwrap breaks at blanks, but not at no-break spaces: they stand for the blanks in a part.
    parts = [part.replace(" ", "\u00a0") for part in text.split(", ")]
    lines = [line.replace("\u00a0", " ") for line in textwrap.wrap(", ".join(parts), width)]
    if len(lines) <= 2:
        return "\n".join(lines)
    return "\n".join([lines[0], shorten(" ".join(lines[1:]), width)])


def draw_seconds(rows: Sequence[Row]) -> Figure:
    """A dot for each job's median with its 95 % interval, and its rank and ratio next to it.

    The axis is logarithmic if the slowest job takes over 20 times as long as the fastest.
    """
    medians = [row.median_s for row in rows]
    unit = unit_of_all(medians)
    # On a linear axis the fast jobs would lie on top of each other at 0.
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
        axes.plot(unit.of(row.median_s), place, "o", color=row.colour, markersize=size,
                  markeredgecolor=INK if row.rank == 1 else row.colour, zorder=3)  # fmt: skip
    units = [significant(unit.of(row.median_s)) for row in rows]
    _write_columns(
        axes, [units, [_times_of_base(row) for row in rows], [_rank(row) for row in rows]]
    )
    for place, text in enumerate((unit.name, "speed", "rank")):
        _write_cell(axes, -0.95, place, text)
    _set_grid(axes)
    return figure


def _interval_to_show(row: Row) -> tuple[float, float]:
    """The interval of the median, or the median alone if the interval is unknown or too wide."""
    known = row.interval_s
    if known and known[1] <= WIDEST_INTERVAL * known[0]:
        return known
    return row.median_s, row.median_s


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
        # With two significant digits, 99.5 and more would be shown as 1e+02.
        _write_value(axes, place, f"{middle:.2g}" if middle < 99.5 else f"{middle:.0f}")
    # The line is the limit itself, which replays of steps and lucky trials may exceed.
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
    # The axis is upside down, so that the first row is on top.
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
    """Draw vertical grid lines behind the data, at most about five on a linear axis."""
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    if axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(5))


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
    """Write the labels into a column to the right of the axes.

    Each label is as close to the height of its point as the other labels allow.
    """
    # Heights on the axes, from 0 to 1, as the scale may be logarithmic; the limits are set by now.
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
    """The ascending heights, moved just enough to keep them apart; the last one is at most 1."""
    # Labels are first moved upwards, from the lowest on. Labels that would then leave the axes at
    # the top push the labels below them down again.
    apart: list[float] = []
    for height in heights:
        apart.append(max(height, apart[-1] + distance) if apart else height)
    last = len(apart) - 1
    return [min(height, 1 - distance * (last - place)) for place, height in enumerate(apart)]


def draw_ladders(ladders: Sequence[tuple[str, Ladder]]) -> Figure:
    """A bar for each job, divided into the parts of its epoch, as shares of the epoch.

    ladders: the label of each job, and its ladder, which has the times of the parts. Names of parts
    are inside of their bars if there is room, else in a legend below the chart.
    """
    figure = Figure(
        figsize=(WIDTH_IN, LADDER_AROUND_IN + BAR_IN * len(ladders)), layout="constrained"
    )
    axes = figure.add_subplot()
    unnamed: dict[Part, BarContainer] = {}
    for place, (_, ladder) in enumerate(ladders):
        start = 0.0
        for row in ladder.rows:
            # A part that is nothing but noise may be estimated below zero.
            share = max(0.0, row.share.value)
            bar = axes.barh(
                place, share, left=start, height=0.62, color=PART_COLOURS[row.rung], linewidth=0
            )
            if share > LETTER_SHARE * (len(row.rung) + 1):
                axes.text(start + share / 2, place, row.rung, ha="center", va="center",
                          fontsize=8, color=ON_BARS)  # fmt: skip
            elif share > 0:
                unnamed.setdefault(row.rung, bar)
            start += share
        axes.annotate(
            significant(1e3 * ladder.epoch_s.value / ladder.batches), (1, place), (42, 0),
            xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
            va="center", fontsize=8.5,
        )  # fmt: skip
    axes.set_yticks(
        range(len(ladders)),
        [wrap_label(label, LADDER_LABEL_WIDTH) for label, _ in ladders],
        fontsize=8.5,
    )
    # The axis is upside down, so that the first job is on top. The parts may add up to more than
    # the epoch.
    axes.set_ylim(len(ladders) - 0.4, -0.6)
    axes.set_xlim(0, max(1.0, *(ladder.explained for _, ladder in ladders)))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    axes.set_xlabel("% of the epoch")
    if unnamed:
        patches = [bar.patches[0] for bar in unnamed.values()]
        figure.legend(patches, list(unnamed), loc="outside lower center", frameon=False,
                      ncols=min(4, len(unnamed)), fontsize=8)  # fmt: skip
    return figure
