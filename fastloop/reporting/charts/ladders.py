"""Chart of the parts of an epoch: a stacked bar for each explained job."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fastloop.core.explanation import Ladder
from fastloop.core.number_text import significant
from fastloop.core.parts import Part
from fastloop.reporting.charts.style import WIDTH_IN, wrap_label

BAR_IN = 0.42
"""Height of a bar with its space in inches."""
AROUND_IN = 0.75
"""Height of the figure around its bars in inches."""
LABEL_WIDTH = 22
"""Longest line of a bar's label, in characters."""
LETTER_SHARE = 0.021
"""About the width of a letter, as a share of the axis."""
ON_BARS = "#1a1a1a"
"""Colour of names on bars: not INK, which dark mode replaces, while the bars keep their colours."""
COLOURS = {
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


def draw_ladders(ladders: Sequence[tuple[str, Ladder]]) -> Figure:
    """Bars of the parts of an epoch, as shares of it, with the labels of the jobs.

    Names of parts are inside of their bars if there is room, else in a legend below the chart.
    """
    figure = Figure(figsize=(WIDTH_IN, AROUND_IN + BAR_IN * len(ladders)), layout="constrained")
    axes = figure.add_subplot()
    unnamed: dict[Part, BarContainer] = {}
    for place, (_, ladder) in enumerate(ladders):
        start = 0.0
        for row in ladder.rows:
            # a part that is nothing but noise may be estimated below zero
            share = max(0.0, row.share.value)
            bar = axes.barh(
                place, share, left=start, height=0.62, color=COLOURS[row.rung], linewidth=0
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
        range(len(ladders)), [wrap_label(label, LABEL_WIDTH) for label, _ in ladders], fontsize=8.5
    )
    # upside down, so that the first job is on top; parts may add up to more than the epoch
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
