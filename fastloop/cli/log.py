"""fastloop log: log to MLflow the results that its server has not received.

    fastloop log <folder of a sweep or of a job>

Results that MLflow already has are skipped. If its database was deleted, all results are logged
again.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from fastloop.core.outputs_folder import CLAIM, claim_sweep_folder
from fastloop.core.passwords import without_passwords
from fastloop.core.result_io import RESULT_FILE, load_result, save
from fastloop.core.text import first_line
from fastloop.core.types import MachineBusy, UsageError
from fastloop.sweep.machine_lock import lock_machine

USAGE = "usage: fastloop log <folder of a sweep or of a job>"


def main() -> None:
    """Log all results in the folder that MLflow lacks; exits with 1 if there is no result."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    # An empty argument is refused, too: Path("") is the working folder.
    if len(sys.argv) != 2 or sys.argv[1].startswith("-") or not sys.argv[1].strip():
        sys.exit(USAGE)
    folder = Path(sys.argv[1])
    try:
        # The lock keeps this command away from a running sweep, which logs its results itself.
        with lock_machine(wait=False):
            for result_folder in _result_folders(folder):
                print(f"{result_folder}: {_record(result_folder)}")
    except (UsageError, MachineBusy) as error:
        sys.exit(str(error))


def _result_folders(folder: Path) -> list[Path]:
    """Folders with a result in or below the folder, without the copies in MLflow's artifacts."""
    folders = [path.parent for path in sorted(folder.rglob(RESULT_FILE))]
    folders = [path for path in folders if path.name != "artifacts"]
    if not folders:
        raise UsageError(f"{folder}: no {RESULT_FILE} in or below it")
    return folders


def _record(folder: Path) -> str:
    """Log the result in the folder to MLflow, unless MLflow has it or it is still measured.

    Returns a message about it. Raises UsageError if logging fails.
    """
    from fastloop.options.tracker.mlflow import MlflowTracker

    result = load_result(folder / RESULT_FILE, "folder")
    tracker = MlflowTracker(experiment=result.params.get("tracker.experiment", "fastloop"))
    if result.recorded and tracker.holds(result.run_id):
        return "already in the tracker"
    if result.status == "RUNNING":
        # A command on another machine, or with allow_concurrent=true, may run beside this one.
        if _is_measured(folder):
            return "still measured, and logged by the command that does so"
        result = replace(result, status="KILLED")
    try:
        # `start` creates MLflow's run. The run's id is saved at once, because logging may fail
        # halfway.
        result = replace(result, run_id=tracker.start(result))
        save(result, folder)
        tracker.finish(result, folder)
        report = folder.parent / "report"
        tracker.attach(result.run_id, [*report.glob("*.html"), *report.glob("*.png")])
    # If the server is unreachable, or is another program, the client may raise anything.
    except Exception as error:
        reason = first_line(error) or type(error).__name__
        raise UsageError(without_passwords(f"{folder}: not recorded: {reason}")) from error
    save(replace(result, recorded=True), folder)
    return f"{result.name}, {len(result.trials)} trials"


def _is_measured(folder: Path) -> bool:
    """True if a command measures the sweep to which the result in the folder belongs."""
    for claimed in (folder, folder.parent):
        # Claiming a folder shows whether another command has claimed it. It writes a file for a
        # moment, so only folders that have this file are tried.
        if (claimed / CLAIM).exists():
            try:
                with claim_sweep_folder(claimed):
                    continue
            except UsageError:
                return True
    return False
