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
"""The line that is printed for wrong arguments."""


def main() -> None:
    """Log the results in the folder that MLflow lacks.

    Prints one line and exits with status 1 for wrong arguments, if there is no result, if logging
    fails, or if another command is measuring.
    """
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__, end="")
        return
    # An empty argument is refused, too, because Path("") is the working folder.
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
    """The folder and the folders below it, as far as they have a result.

    Folders with MLflow's copies of results (artifacts) are left out. Raises UsageError if there is
    no result.
    """
    folders = [path.parent for path in sorted(folder.rglob(RESULT_FILE))]
    folders = [path for path in folders if path.name != "artifacts"]
    if not folders:
        raise UsageError(f"{folder}: no {RESULT_FILE} in or below it")
    return folders


def _record(folder: Path) -> str:
    """Log the result in the folder, unless MLflow has the result or its job is still measured.

    Returns a message about the result. Raises UsageError if logging fails.
    """
    from fastloop.options.tracker.mlflow import MlflowTracker

    result = load_result(folder / RESULT_FILE, "folder")
    tracker = MlflowTracker(experiment=result.params.get("tracker.experiment", "fastloop"))
    if result.recorded and tracker.holds(result.run_id):
        return "already in the tracker"
    if result.status == "RUNNING":
        # The lock of this machine does not keep out a command on another machine, or one with
        # allow_concurrent=true. Such a command may still be measuring the job.
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
    # MLflow's client may raise anything if the server is unreachable, or is another program.
    except Exception as error:
        reason = first_line(error) or type(error).__name__
        raise UsageError(without_passwords(f"{folder}: not recorded: {reason}")) from error
    save(replace(result, recorded=True), folder)
    return f"{result.name}, {len(result.trials)} trials"


def _is_measured(folder: Path) -> bool:
    """True if a command is measuring the sweep to which the result in the folder belongs.

    The command has then claimed the folder of the sweep, by a lock on the file CLAIM in it.
    """
    for claimed in (folder, folder.parent):
        # An attempt to claim the folder shows if another command has claimed it. The attempt writes
        # the file, so only folders that have the file are tried.
        if (claimed / CLAIM).exists():
            try:
                with claim_sweep_folder(claimed):
                    continue
            except UsageError:
                return True
    return False
