"""Draw the pictures of a report: each chart that has values, with its title and caption.

`pictures` draws the charts of one benchmark, and `pictures_of_ladders` the parts of the jobs'
epochs. Every graphical element is labelled directly: no meaning depends on colour alone.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.figure import Figure

from fastloop.core.result import Result
from fastloop.reporting.charts import (
    RC_PARAMS,
    draw_ladders,
    draw_limit,
    draw_rounds,
    draw_seconds,
    draw_throughput_against_memory,
    draw_waits,
)
from fastloop.reporting.short_names import short_names
from fastloop.reporting.summary import Comparison, Row


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure of one benchmark, with its title and caption."""

    name: str
    """File name without suffix."""
    subject: str
    """The benchmark and, if a report has several groups of jobs, the data of the group."""
    title: str
    caption: str
    figure: Figure

    @property
    def heading(self) -> str:
        """The title after the subject, for places without another heading of the benchmark."""
        return f"{self.subject}: {self.title[0].lower()}{self.title[1:]}"

    def svg(self) -> str:
        """The figure as an <svg> element, in which text stays text instead of shapes."""
        buffer = io.StringIO()
        with _style():
            # The date is left out, so that equal results give equal files.
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        # The XML declaration and the doctype are cut off: an element in a page must not have them.
        text = buffer.getvalue()
        return text[text.index("<svg") :]

    def png(self) -> bytes:
        """A PNG file with a white background and the heading, for places that can't show SVG."""
        buffer = io.BytesIO()
        with _style():
            # Only this file has the heading in the figure. Pages have it as text above the figure.
            heading = self.figure.text(0, 1.02, self.heading, weight="bold", fontsize=10.5)
            self.figure.savefig(
                buffer, format="png", dpi=200, facecolor="white", bbox_inches="tight"
            )
            heading.remove()
        return buffer.getvalue()


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A kind of chart, which can be drawn for any benchmark."""

    name: str
    title: str
    caption: str
    draw: Callable[[Sequence[Row]], Figure]
    """Draws the chart of these rows."""
    has_values: Callable[[Row], object] = lambda _: True
    """Truthy for a row that has the values to draw."""
    is_worthwhile: Callable[[Sequence[Row]], bool] = bool
    """False for rows if a chart of their values would show no more than the table does."""


@contextmanager
def _style() -> Iterator[None]:
    """A context with matplotlib's settings for drawing and saving."""
    with mpl.rc_context(RC_PARAMS), warnings.catch_warnings():
        # Names may be in any script, such as Chinese. In SVG, the fonts of the reader draw them.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        yield


SMALLEST_SHARE = 0.05
"""On an axis that ends at 100 %, bars below this share are too short to see."""


CHARTS = (
    Chart(
        name="seconds",
        title="Time of a trial",
        caption="Dots and numbers: medians; ringed: rank 1. Lines: 95 % intervals, if they span "
        "less than a factor of ten. Speed: relative to the baseline.",
        draw=draw_seconds,
    ),
    Chart(
        name="rounds",
        title="Seconds of each trial over the rounds",
        caption="A panel for each job, with the other jobs in grey. A bump in all panels is noise "
        "of the machine.",
        draw=draw_rounds,
    ),
    Chart(
        name="waits",
        title="Waits for a batch",
        caption="In one instrumented epoch. Boxes: quartiles and median; lines: 5 % to 95 %; "
        "dots: outliers. Logarithmic axis.",
        draw=draw_waits,
        has_values=lambda row: row.waits_s,
    ),
    Chart(
        name="memory",
        title="Throughput against memory",
        caption="Higher is faster, further left needs less memory.",
        draw=draw_throughput_against_memory,
        has_values=lambda row: row.peak_mib,
    ),
    Chart(
        name="limit",
        title="Share of what the machine can do",
        caption="Bars and numbers: medians over trials; dots: trials. The limit was measured "
        "next to each trial.",
        draw=draw_limit,
        has_values=lambda row: row.limit_fraction is not None,
        is_worthwhile=lambda rows: max(row.limit_fraction or 0 for row in rows) >= SMALLEST_SHARE,
    ),
)


def pictures(comparison: Comparison, subject: str = "", prefix: str = "") -> list[Picture]:
    """Draw each worthwhile chart for which at least one row of the comparison has values.

    subject: beginning of the headings; the benchmark if it is empty. prefix: beginning of the
    pictures' names.
    """
    rows_by_chart = [
        (chart, [row for row in comparison.rows if chart.has_values(row)]) for chart in CHARTS
    ]
    return [
        Picture(
            name=f"{prefix}{comparison.benchmark}-{chart.name}",
            subject=subject or comparison.benchmark.capitalize(),
            title=chart.title,
            caption=chart.caption,
            figure=_draw(chart, rows),
        )
        for chart, rows in rows_by_chart
        if rows and chart.is_worthwhile(rows)
    ]


def pictures_of_ladders(results: Sequence[Result]) -> list[Picture]:
    """Draw one picture with the parts of an epoch of each explained job; empty if there is none.

    A ladder is the list of times that the parts of an epoch, such as decoding or the step, add to
    it.
    """
    names = short_names(results)
    ladders = [
        (names[result.name], result.explanation.ladder) for result in results if result.explanation
    ]
    if not ladders:
        return []
    with _style():
        figure = draw_ladders(ladders)
    return [
        Picture(
            name="explained",
            subject="Why",
            title="Parts of an epoch",
            caption="How much each part adds to an epoch. Number: milliseconds a batch.",
            figure=figure,
        )
    ]


def _draw(chart: Chart, rows: Sequence[Row]) -> Figure:
    with _style():
        return chart.draw(rows)
