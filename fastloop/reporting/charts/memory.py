"""Chart of throughput against memory, with a labelled point for each job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Bbox

from fastloop.reporting.charts.style import BLUE, WIDTH_IN, set_log_ticks
from fastloop.reporting.summary import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_throughput_against_memory(rows: Sequence[Row]) -> Figure:
    """Scatter plot of samples/s over peak memory in MiB, with a labelled point for each job.

    The samples/s axis is logarithmic if the fastest job has over 8 times the rate of the slowest.
    """
    figure = Figure(figsize=(WIDTH_IN, 3.0), layout="constrained")
    axes = figure.add_subplot()
    rates = [row.samples_per_s for row in rows]
    memory = [row.peak_mib or 0.0 for row in rows]
    axes.scatter(memory, rates, s=26, color=BLUE, linewidth=0, zorder=3)
    if max(rates) > 8 * min(rates):
        axes.set_yscale("log")
        axes.set_ylim(min(rates) / 1.8, max(rates) * 1.8)
        set_log_ticks(axes.yaxis, rates, max_ticks=7)
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
    """Write each label next to its point (x, y), where it covers no point and no other label."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # a new layout would move the axes under the labels
    centres = [axes.transData.transform((x, y)) for x, y, _ in points]
    boxes = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in centres]
    frame = axes.get_window_extent()
    offsets = [("left", 6, 0), ("right", -6, 0), ("center", 0, 10), ("center", 0, -10)]
    offsets += [
        (side, dx, sign * step)
        for step in (9, 16, 24, 34)
        for sign in (1, -1)
        for side, dx in (("left", 6), ("right", -6))
    ]
    for x, y, text in points:
        for side, dx, dy in offsets:
            label = axes.annotate(
                text, (x, y), (dx, dy), textcoords="offset points", ha=side, va="center",
                fontsize=8.5,
            )  # fmt: skip
            box = label.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1
            is_last = (side, dx, dy) == offsets[-1]
            if (inside and box.count_overlaps(boxes) == 0) or is_last:
                boxes.append(box)
                break
            label.remove()
