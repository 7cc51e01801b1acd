"""The table of the figures that run.py measures: a line for each, with the bar that it has to
meet."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastloop.core import stats


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    label: str
    figure: str
    bar: str = ""
    met: bool | None = None
    """True if the figure meets its bar; None if there is no bar."""


def table(lines: Sequence[Line]) -> str:
    """The lines in Markdown."""
    words = {True: "met", False: "not met", None: ""}
    rows = [f"| {line.label} | {line.figure} | {line.bar} | {words[line.met]} |" for line in lines]
    return "\n".join(["| | median [95 %] | bar | |", "|---|---:|---|---|", *rows])


def figure(values: Sequence[float], unit: str) -> str:
    """The median with its interval."""
    interval = stats.interval(values)
    bounds = f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else ""
    return f"{stats.median(values):.3g}{bounds} {unit}"


def ratio_by_round(new: Sequence[float], base: Sequence[float]) -> stats.Ratio:
    """The ratio over paired rounds. If there are too few rounds for an interval, its bounds are the
    estimate."""
    if ratio := stats.ratio(new, base):
        return ratio
    estimate = stats.median([a / b for a, b in zip(new, base, strict=True)])
    return stats.Ratio(estimate=estimate, low=estimate, high=estimate, p_value=1.0)


def times(ratio: stats.Ratio) -> str:
    """The ratio with its bounds, as a factor."""
    return f"x {ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def percent_more(ratio: stats.Ratio) -> str:
    """The percentage by which the ratio exceeds 1, with its bounds."""
    bounds = (ratio.low, ratio.estimate, ratio.high)
    low, middle, high = (f"{100 * (bound - 1):.2g}" for bound in bounds)
    return f"{middle} [{low}, {high}] %"
