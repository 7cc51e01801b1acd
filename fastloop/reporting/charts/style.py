"""Style of all charts: colours, matplotlib settings, logarithmic axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

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
    # names may contain $
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
    """The text on at most two lines of `width` characters, shortened if it needs more.

    Lines end after a comma if they can.
    """
    # textwrap breaks at blanks, but not at no-break spaces: they stand for the blanks in a part
    parts = [part.replace(" ", "\u00a0") for part in text.split(", ")]
    lines = [line.replace("\u00a0", " ") for line in textwrap.wrap(", ".join(parts), width)]
    if len(lines) <= 2:
        return "\n".join(lines)
    return "\n".join([lines[0], shorten(" ".join(lines[1:]), width)])
