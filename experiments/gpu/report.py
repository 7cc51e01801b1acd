"""The figures of the GPU run, as figures.json and figures.md: the three headlines first."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
ABOUT = ("cpu", "cores_usable", "memory_gib", "platform", "python", "git_commit")
BARE = "64 MiB"
"""The names of rows for a copy without a pipeline begin with this."""


def write(folder: Path, figures: Figures) -> None:
    """Write both files with the figures so far."""
    content = figures | {"headlines": headlines(figures["parts"])}
    (folder / "figures.json").write_text(json.dumps(content, indent=1))
    (folder / "figures.md").write_text(_markdown(content))


def headlines(parts: Figures) -> list[str]:
    """A line for each of the three headlines; it says so if there is no figure."""
    return [headline(_rows(parts, name)) for name, headline in HEADLINES.items()]


def _hidden_share(rows: list[Figures]) -> str:
    measured = [row for row in rows if row.get("hidden_share") is not None]
    if not measured:
        return "share of the copy hidden behind the step: not measured"
    shares = ", ".join(f"{_percent(row['hidden_share'])} ({row['name']})" for row in measured)
    return f"share of the copy hidden behind the step: {shares}"


def _bandwidth(rows: list[Figures]) -> str:
    measured = [row for row in rows if row.get("share_of_pinned_copy") is not None]
    pipelines = [row for row in measured if not row["name"].startswith(BARE)]
    if not pipelines:
        return "host-to-device bandwidth of the pinned copy's: not measured"
    best = max(pipelines, key=lambda row: row["mb_per_s"])
    first, limit = pipelines[0], measured[0]["mb_per_s"] / 1e3
    return (
        f"host-to-device bandwidth, of the pinned copy's {limit:.1f} GB/s: "
        f"{_percent(best['share_of_pinned_copy'])} ({best['name']}, the best), "
        f"{_percent(first['share_of_pinned_copy'])} ({first['name']})"
    )


def _stall(rows: list[Figures]) -> str:
    measured = [row for row in rows if row.get("stall_fraction") is not None]
    if not measured:
        return "stall fraction of resnet18 at bf16: not measured"
    best = min(measured, key=lambda row: row["stall_fraction"])
    naive = [row for row in measured if row["name"] == "naive"]
    first = _percent(naive[0]["stall_fraction"]) if naive else "not measured"
    return (
        f"stall fraction of resnet18 at bf16: {_percent(best['stall_fraction'])} "
        f"({best['name']}, the best), {first} (naive)"
    )


HEADLINES: dict[str, Callable[[list[Figures]], str]] = {
    "hidden": _hidden_share,
    "bandwidth": _bandwidth,
    "stall": _stall,
}
"""Name of the part that measures a headline -> function that returns its line, in the order in
which the parts run."""


def _rows(parts: Figures, name: str) -> list[Figures]:
    return parts.get(name, {}).get("rows", [])


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _markdown(figures: Figures) -> str:
    about = figures["parts"].get("machine", {}).get("machine", {})
    lines = [f"# {', '.join(about.get('gpus') or [figures['device']])}", ""]
    lines += [f"- {headline}" for headline in figures["headlines"]]
    lines += ["", *(f"- {name}: {about[name]}" for name in ABOUT if about.get(name))]
    for name, part in figures["parts"].items():
        rounds = f", rounds: {part['rounds']}" if "rounds" in part else ""
        lines += ["", f"## {name}", "", f"{part['state']}, {part.get('seconds', 0)} s{rounds}", ""]
        lines += table(part["rows"])
        lines += [f"- not here: {reason}" for reason in part.get("left_out", [])]
        lines += [part["summary"]] if part.get("summary") else []
        if part.get("tail"):
            lines += ["```", *part["tail"], "```"]
    return "\n".join(lines) + "\n"


def table(rows: list[Figures]) -> list[str]:
    """The rows in Markdown, without rows that could not be run or had no time."""
    shown = [row for row in rows if not str(row.get("why", "")).startswith(("unsup", "left out"))]
    columns = list(dict.fromkeys(name for row in shown for name in row))
    if not columns:
        return []
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in shown:
        lines.append(f"| {' | '.join(_cell(row.get(name)) for name in columns)} |")
    return [*lines, ""]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")
