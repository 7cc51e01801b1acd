"""Pictures of the figures of the GPU run: headlines.png and experiments.png next to figures.json.

python -m experiments.gpu.pictures FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

HEADLINES = {
    "hidden": ("hidden_share", "share of the copy hidden behind the step"),
    "bandwidth": ("share_of_pinned_copy", "share of the pinned copy's bandwidth"),
    "stall": ("stall_fraction", "resnet18 at bf16: share of the time that the step stalls"),
}
EXPERIMENTS = {
    "pipeline_steps": ("samples_per_s", "steps of a pipeline, samples/s"),
    "pinning": ("samples_per_s", "memory, copies and batches ahead, samples/s"),
    "executions": ("samples_per_s", "executions, samples/s"),
    "placements": ("batch_us", "placements, us a batch"),
}
COLOUR = "#4477aa"
SPREAD = 30
"""The axis is logarithmic if the largest value is more than this many times the smallest."""


def draw(parts: dict[str, Any], pictures: dict[str, tuple[str, str]], path: Path) -> None:
    """Draw one picture with the bars of each part that has figures; none if no part has any."""
    panels = []
    for name, (column, title) in pictures.items():
        rows = [row for row in parts.get(name, {}).get("rows", []) if _is_number(row.get(column))]
        if rows:
            panels.append((rows, column, title))
    if not panels:
        return
    heights = [0.24 * len(rows) + 0.8 for rows, _, _ in panels]
    size = (9, sum(heights))
    figure, axes = plt.subplots(
        len(panels), figsize=size, height_ratios=heights, squeeze=False, layout="constrained"
    )
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        _draw_bars(axis, *panel)
    figure.savefig(path, dpi=110)


def _draw_bars(axis: Axes, rows: list[dict[str, Any]], column: str, title: str) -> None:
    names = [_name(row) for row in rows]
    positions = range(len(rows))
    values = [row[column] for row in rows]
    bars = axis.barh(positions, values, color=COLOUR)
    axis.bar_label(bars, fmt="{:.3g}", padding=3, fontsize=7)
    axis.set_yticks(positions, names, fontsize=7)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    # Shares are drawn on a linear axis.
    if max(values) > 1 and 0 < SPREAD * min(values) < max(values):
        axis.set_xscale("log")
        axis.set_xlim(left=min(values) / 2)
    else:
        axis.set_xlim(left=0)
    axis.set_title(title, loc="left", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)


def _name(row: dict[str, Any]) -> str:
    columns = ("name", "tree", "setting", "placement")
    parts = [row[column] for column in columns if row.get(column)]
    return ", ".join(map(str, parts))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    measured = json.loads((folder / "figures.json").read_text())["parts"]
    draw(measured, HEADLINES, folder / "headlines.png")
    draw(measured, EXPERIMENTS, folder / "experiments.png")
