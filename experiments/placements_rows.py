"""What placements.py moves, a row of what that took, and the rows as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastloop import stats


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch, and how it may be moved."""

    device: torch.device
    tree: str
    setting: str
    batch: Any
    leaves: list[torch.Tensor]
    places: dict[str, Callable[[Any], Any]]

    def given(self, name: str) -> Any:
        """What the placement of that name gets."""
        return {"bare": self.leaves, "direct": tuple(self.leaves)}.get(name, self.batch)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one placement took for one kind of batch."""

    device: str
    tree: str
    setting: str
    placement: str
    batch_us: float
    interval_us: tuple[float, float] | None
    leaf_us: float
    """Above bare, a leaf."""
    ratio: stats.Ratio | None
    """To bare, paired by round."""
    share: float | None
    """Of the pinned copy's bandwidth; None where nothing is copied."""
    waiting_us: float | None = None
    """A step longer than on a batch at its place; None where there is no step."""
    step_ratio: stats.Ratio | None = None
    """Of that step to the one on a batch at its place."""


def row_of(
    case: Case,
    name: str,
    seconds: dict[str, list[tuple[float, ...]]],
    limit: float | None,
    steps: list[tuple[float, ...]],
) -> Row:
    own, bare = ([one for (one,) in seconds[which]] for which in (name, "bare"))
    above = stats.median([one - other for one, other in zip(own, bare, strict=True)])
    nbytes = sum(leaf.nbytes for leaf in case.leaves)
    with_it, without = zip(*steps, strict=True) if steps else ((), ())
    waits = [one - other for one, other in steps]
    return Row(
        device=str(case.device),
        tree=case.tree,
        setting=case.setting,
        placement=name,
        batch_us=1e6 * stats.median(own),
        interval_us=in_us(stats.interval(own)),
        leaf_us=1e6 * above / len(case.leaves),
        ratio=stats.ratio(own, bare),
        share=nbytes / stats.median(own) / limit if limit else None,
        waiting_us=1e6 * stats.median(waits) if waits else None,
        step_ratio=stats.ratio(with_it, without) if steps else None,
    )


def in_us(seconds: tuple[float, float] | None) -> tuple[float, float] | None:
    return (1e6 * seconds[0], 1e6 * seconds[1]) if seconds else None


def table(rows: list[Row]) -> str:
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
            *(row.device, tree, row.placement),
            f"{row.batch_us:.4g}{bounds(row.interval_us)}",
            *(f"{row.leaf_us:.2f}", times(row.ratio), share, waits, times(row.step_ratio)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def times(ratio: stats.Ratio | None) -> str:
    return f"{ratio.estimate:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio else ""


def bounds(interval: tuple[float, float] | None) -> str:
    return f" [{interval[0]:.4g}, {interval[1]:.4g}]" if interval else ""
