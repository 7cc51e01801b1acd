"""A sweep's result files, and windows set by a test."""

from __future__ import annotations

import json
from pathlib import Path

LOADERS = ("raw", "preload", "np_memmap")


def sweep_folder(cwd: Path) -> Path:
    (folder,) = cwd.glob("outputs/20*/*")
    return folder


def set_seconds(folder: Path, seconds: dict[str, float], jitter: float = 0.01) -> None:
    """Rewrite every trial's window; trial k of each job is a little longer than trial k - 1."""
    for path in folder.rglob("result.json"):
        content = json.loads(path.read_text())
        for trial in content["trials"]:
            for window in trial["benchmarks"].values():
                length_s = seconds[content["loader"]] * (1 + jitter * trial["number"])
                window["stop_ns"] = window["start_ns"] + round(1e9 * length_s)
        path.write_text(json.dumps(content))
