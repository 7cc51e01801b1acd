"""python -m fastloop.record <folder>: log to MLflow what a lost server did not get."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from fastloop.alone import Occupied, alone
from fastloop.arguments import read
from fastloop.refusal import Refused
from fastloop.result import RESULT_FILE, save

USAGE = "usage: python -m fastloop.record <folder of a sweep or of a job>"


def main() -> None:
    """Log every result below the folder that no tracker has; exits with 1 where there is none."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(USAGE)
    folder = Path(sys.argv[1])
    try:
        with alone(wait=False):  # what is being measured has not ended yet
            for one in _results_in(folder):
                print(f"{one}: {_record(one)}")
    except (Refused, Occupied) as why:
        sys.exit(str(why))


def _results_in(folder: Path) -> list[Path]:
    """Folders of results, the copies among MLflow's artifacts left out."""
    found = [path.parent for path in sorted(folder.rglob(RESULT_FILE))]
    found = [one for one in found if one.name != "artifacts"]
    if not found:
        raise Refused(f"{folder}: no {RESULT_FILE} in it or below")
    return found


def _record(folder: Path) -> str:
    from fastloop.trackers.mlflow import MlflowTracker

    result = read(folder / RESULT_FILE, "folder")
    if result.recorded:
        return "is in the tracker already"
    tracker = MlflowTracker(experiment=result.params.get("tracker.experiment", "fastloop"))
    if result.status == "RUNNING":
        result = replace(result, status="KILLED")
    try:
        result = replace(result, run_id=tracker.start(result))
        save(result, folder)
        tracker.finish(result, folder)
        report = folder.parent / "report"
        tracker.attach(result.run_id, [*report.glob("*.html"), *report.glob("*.png")])
    except Exception as error:  # whatever a lost or foreign server makes of it
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Refused(f"{folder}: not recorded: {said}") from error
    save(replace(result, recorded=True), folder)
    return f"{result.name}, {len(result.trials)} trials"


if __name__ == "__main__":
    main()
