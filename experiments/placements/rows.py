"""The cases that run.py measures, the row of each placement, and the rows as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastloop.core import stats


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch, and the placements that move it."""

    device: torch.device
    tree: str
    setting: str
    batch: Any
    leaves: list[torch.Tensor]
    placements: dict[str, Callable[[Any], Any]]

    def input_of(self, name: str) -> Any:
        """The batch in the form that the placement of this name takes."""
        return {"bare": self.leaves, "direct": tuple(self.leaves)}.get(name, self.batch)


@dataclass(frozen=True, kw_only=True)
class PlacementTime:
    """The time of one placement for one kind of batch."""

    device: str
    tree: str
    setting: str
    placement: str
    batch_us: float
    interval_us: tuple[float, float] | None
    leaf_us: float
    """Time above that of "bare", per leaf."""
    ratio: stats.Ratio | None
    """Ratio of the time to that of "bare", paired by round."""
    share: float | None
    """Share of the pinned copy's bandwidth; None if nothing is copied."""
    waiting_us: float | None = None
    """Time by which a step takes longer than on a batch that is on the device already; None without
    a step."""
    step_ratio: stats.Ratio | None = None
    """Ratio of the step's time to its time on such a batch."""


def row_of(
    case: Case,
    name: str,
    seconds: dict[str, list[tuple[float, ...]]],
    limit: float | None,
    steps: list[tuple[float, ...]],
) -> PlacementTime:
    """The row of a placement with these times."""
    placed, bare = ([value for (value,) in seconds[key]] for key in (name, "bare"))
    above = stats.median([ours - base for ours, base in zip(placed, bare, strict=True)])
    nbytes = sum(leaf.nbytes for leaf in case.leaves)
    placing, resident = zip(*steps, strict=True) if steps else ((), ())
    waits = [slow - fast for slow, fast in steps]
    return PlacementTime(
        device=str(case.device),
        tree=case.tree,
        setting=case.setting,
        placement=name,
        batch_us=1e6 * stats.median(placed),
        interval_us=in_us(stats.interval(placed)),
        leaf_us=1e6 * above / len(case.leaves),
        ratio=stats.ratio(placed, bare),
        share=nbytes / stats.median(placed) / limit if limit else None,
        waiting_us=1e6 * stats.median(waits) if waits else None,
        step_ratio=stats.ratio(placing, resident) if steps else None,
    )


def in_us(seconds: tuple[float, float] | None) -> tuple[float, float] | None:
    """The interval in microseconds."""
    return (1e6 * seconds[0], 1e6 * seconds[1]) if seconds else None


def table(rows: list[PlacementTime]) -> str:
    """The rows in Markdown."""
    lines = [
        "| device | tree | placement | us a batch [95 %] | us a leaf above bare | x bare [95 %] "
        "| of the pinned copy | us a step waits | x the step [95 %] |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        tree = f"{row.tree}, {row.setting}" if row.setting else row.tree
        share = "" if row.share is None else f"{100 * row.share:.0f} %"
        waits = "" if row.waiting_us is None else f"{row.waiting_us:.4g}"
        cells = [
            row.device,
            tree,
            row.placement,
            f"{row.batch_us:.4g}{bounds(row.interval_us)}",
            *(f"{row.leaf_us:.2f}", times(row.ratio), share, waits, times(row.step_ratio)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def times(ratio: stats.Ratio | None) -> str:
    """The ratio with its interval, as text."""
    return f"{ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else ""


def bounds(interval: tuple[float, float] | None) -> str:
    """The interval in brackets; empty for None."""
    return f" [{interval[0]:.4g}, {interval[1]:.4g}]" if interval else ""
