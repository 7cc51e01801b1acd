"""What gpu.py has measured, as figures.json and figures.md: the three headlines first."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
ABOUT = ("cpu", "cores_usable", "memory_gib", "platform", "python", "git_commit")
BARE = "64 MiB"
"""How the rows of a copy without a pipeline begin."""


def write(folder: Path, figures: Figures) -> None:
    """Both files, of what is known so far."""
    told = figures | {"headlines": headlines(figures["parts"])}
    (folder / "figures.json").write_text(json.dumps(told, indent=1))
    (folder / "figures.md").write_text(_markdown(told))


def headlines(parts: Figures) -> list[str]:
    """A line for each of the three; where one has no figure, that it has none."""
    return [tell(_rows(parts, name)) for name, tell in HEADLINES.items()]


def _hidden(rows: list[Figures]) -> str:
    told = [row for row in rows if row.get("hidden_share") is not None]
    if not told:
        return "share of the copy hidden behind the step: not measured"
    each = ", ".join(f"{_percent(row['hidden_share'])} ({row['name']})" for row in told)
    return f"share of the copy hidden behind the step: {each}"


def _bandwidth(rows: list[Figures]) -> str:
    told = [row for row in rows if row.get("share_of_pinned_copy") is not None]
    ways = [row for row in told if not row["name"].startswith(BARE)]
    if not ways:
        return "host-to-device bandwidth of the pinned copy's: not measured"
    best, limit = max(ways, key=lambda row: row["mb_per_s"]), told[0]["mb_per_s"] / 1e3
    first = ways[0]
    return (
        f"host-to-device bandwidth, of the pinned copy's {limit:.1f} GB/s: "
        f"{_percent(best['share_of_pinned_copy'])} ({best['name']}, the best), "
        f"{_percent(first['share_of_pinned_copy'])} ({first['name']})"
    )


def _stall(rows: list[Figures]) -> str:
    told = [row for row in rows if row.get("stall_fraction") is not None]
    if not told:
        return "stall fraction of resnet18 at bf16: not measured"
    best = min(told, key=lambda row: row["stall_fraction"])
    naive = [row for row in told if row["name"] == "naive"]
    first = _percent(naive[0]["stall_fraction"]) if naive else "not measured"
    return (
        f"stall fraction of resnet18 at bf16: {_percent(best['stall_fraction'])} "
        f"({best['name']}, the best), {first} (naive)"
    )


HEADLINES: dict[str, Callable[[list[Figures]], str]] = {
    "hidden": _hidden,
    "bandwidth": _bandwidth,
    "stall": _stall,
}
"""By the part that measures it, in the order in which they are run."""


def _rows(parts: Figures, name: str) -> list[Figures]:
    return parts.get(name, {}).get("rows", [])


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _markdown(figures: Figures) -> str:
    about = figures["parts"].get("machine", {}).get("machine", {})
    lines = [f"# {', '.join(about.get('gpus') or [figures['device']])}", ""]
    lines += [f"- {one}" for one in figures["headlines"]]
    lines += ["", *(f"- {name}: {about[name]}" for name in ABOUT if about.get(name))]
    for name, part in figures["parts"].items():
        rounds = f", rounds: {part['rounds']}" if "rounds" in part else ""
        lines += ["", f"## {name}", "", f"{part['state']}, {part.get('seconds', 0)} s{rounds}", ""]
        lines += [*table(part["rows"]), *(f"- not here: {one}" for one in part.get("left_out", []))]
        lines += [part["summary"]] if part.get("summary") else []
        if part.get("tail"):
            lines += ["```", *part["tail"], "```"]
    return "\n".join(lines) + "\n"


def table(rows: list[Figures]) -> list[str]:
    """The rows in Markdown, but for those that could not be run or had no time."""
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
