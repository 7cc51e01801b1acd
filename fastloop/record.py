"""python -m fastloop.record <folder>: log to MLflow what a lost server did not get."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path


def main() -> None:
    """Log every result below the folder that no tracker has; exits with 1 where there is none."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m fastloop.record <folder of a sweep or of a job>")
    folder = Path(sys.argv[1])
    found = sorted(path.parent for path in folder.rglob("result.json"))
    if not found:
        sys.exit(f"{folder}: no result.json in it or below")
    for one in found:
        print(f"{one}: {_record(one)}")


def _record(folder: Path) -> str:
    from fastloop.result import load, save
    from fastloop.trackers.mlflow import MlflowTracker

    result = load(folder)
    if result.recorded:
        return "is in the tracker already"
    tracker = MlflowTracker(experiment="fastloop")
    status = "KILLED" if result.status == "RUNNING" else result.status
    result = replace(result, status=status, run_id=result.run_id or tracker.start(result))
    tracker.finish(result, folder)
    save(replace(result, recorded=True), folder)
    return f"{result.name}, {len(result.trials)} trials"


if __name__ == "__main__":
    main()
