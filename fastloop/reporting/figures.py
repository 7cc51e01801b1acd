"""Pictures of one benchmark. A label stands beside everything drawn: no meaning hangs on colour."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fastloop.reporting import plots
from fastloop.reporting.plots import FAINT, INK
from fastloop.reporting.summary import Comparison, Row

STYLE: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.size": 9.5,
    "text.color": INK,
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


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture with the words that go with it."""

    name: str
    """Of its file, without the ending."""
    subject: str
    """The benchmark."""
    title: str
    caption: str
    figure: Figure

    @property
    def heading(self) -> str:
        """The title for where no other heading names the benchmark."""
        return f"{self.subject}: {self.title[0].lower()}{self.title[1:]}"

    def svg(self) -> str:
        """The picture as an <svg> element, its text as text."""
        buffer = io.StringIO()
        with mpl.rc_context(STYLE):
            self.figure.savefig(buffer, format="svg", metadata={"Date": None})
        text = buffer.getvalue()
        return text[text.index("<svg") :]

    def png(self) -> bytes:
        """The picture with its title on white, for places that show no SVG."""
        buffer = io.BytesIO()
        with mpl.rc_context(STYLE):
            heading = self.figure.text(0, 1.02, self.heading, weight="bold", fontsize=10.5)
            self.figure.savefig(
                buffer, format="png", dpi=200, facecolor="white", bbox_inches="tight"
            )
            heading.remove()
        return buffer.getvalue()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What there is to draw of any benchmark."""

    name: str
    title: str
    caption: str
    draw: Callable[[Sequence[Row]], Figure]
    needs: Callable[[Row], object] = lambda _: True
    """Truthy for the rows that have what is drawn."""


KINDS = (
    Kind(
        name="seconds",
        title="Seconds a trial",
        caption="Bars and numbers: medians. Lines: 95 % intervals; an arrow: on beyond.",
        draw=plots.seconds,
    ),
    Kind(
        name="rounds",
        title="Seconds of each trial over the rounds",
        caption="A panel a job, the others grey behind it. A bump in all is the machine's.",
        draw=plots.over_rounds,
    ),
    Kind(
        name="waits",
        title="Waits for a batch",
        caption="Of one instrumented epoch. Boxes: the middle half, with the median; lines: 5 % "
        "to 95 %; dots: the waits beyond. Logarithmic axis.",
        draw=plots.waits,
        needs=lambda row: row.waits_s,
    ),
    Kind(
        name="memory",
        title="Throughput against memory",
        caption="Further up is faster, further left is smaller.",
        draw=plots.against_memory,
        needs=lambda row: row.peak_mib,
    ),
    Kind(
        name="limit",
        title="Share of what the machine can do",
        caption="Bars and numbers: medians of the trials, dots. The limit was measured beside "
        "each trial.",
        draw=plots.limit,
    ),
)


def pictures(comparison: Comparison, prefix: str = "") -> list[Picture]:
    """Every picture for which there are values."""
    drawn = [(kind, [row for row in comparison.rows if kind.needs(row)]) for kind in KINDS]
    return [
        Picture(
            name=f"{prefix}{comparison.benchmark}-{kind.name}",
            subject=comparison.benchmark.capitalize(),
            title=kind.title,
            caption=kind.caption,
            figure=_styled(kind, rows),
        )
        for kind, rows in drawn
        if rows
    ]


def _styled(kind: Kind, rows: Sequence[Row]) -> Figure:
    with mpl.rc_context(STYLE):
        return kind.draw(rows)
