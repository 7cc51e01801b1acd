"""Keep the state of a job during its sweep: the result so far, written to disk after every change.

A `SweepJob` is a job before it runs, and `JobState` is the same job while the sweep runs it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from fastloop.core.atomic_files import remove, write_text
from fastloop.core.auto_trials import fewest_trials
from fastloop.core.explanation import EXPLANATION_FILE, TIMELINE_SVG, TIMELINE_TRACE
from fastloop.core.launcher import Launcher
from fastloop.core.passwords import without_address_users, without_passwords
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Result, Status
from fastloop.core.result_io import save
from fastloop.core.types import Failure, FailureKind
from fastloop.sweep.tracking import SweepTracker
from fastloop.trial.job import Job

DETAILS = "traceback.txt"
"""Name of the file with the traceback, or the stacks, of a job that failed."""


@dataclass(frozen=True, kw_only=True)
class SweepJob:
    """A job of a sweep, the folder of its files, and its result before it runs."""

    index: int
    """Position among the command's jobs, by which ranks on other nodes refer to the job."""
    job: Job
    launcher: Launcher
    folder: Path
    """The folder of the job's files."""
    config_yaml: str
    result: Result
    """The result before the job runs."""
    earlier: Result | None = None
    """The job's result in an interrupted sweep that is resumed; None otherwise."""
    most_prepare_s: float | None = None
    """Seconds after which preparing the job's data fails; None: there is no such limit."""


class JobState:
    """The present state of one job of a sweep.

    The result of an interrupted sweep is not overwritten until the job is continued.
    """

    def __init__(self, entry: SweepJob, tracking: SweepTracker) -> None:
        self.entry = entry
        self.tracking = tracking
        self.result = entry.earlier or entry.result
        self.prepared: PreparedData | None = None
        self.owns_result = entry.earlier is None
        """False while the result on disk belongs to an interrupted sweep, and must not be
        overwritten yet."""
        # The number is drawn at random, so that no loader can foresee which of its trials is
        # compared. It is below the fewest trials, because with trials=auto nobody knows whether a
        # later one will run.
        self.shadow_number: int | None = secrets.randbelow(fewest_trials(entry.job.trials))
        """Number of the trial that is run again with all of its data compared; None: the last
        trial, after all have run."""
        self.unexplained = ""
        """Reason why the job could not be explained, for its caveats."""
        self.has_begun = False
        """True once this command has written the files that precede any measurement."""
        self._ending: tuple[Status, Failure | None] | None = None
        """Status and failure of a job that has ended, until its result is logged; else None."""

    def update(self, **changes: object) -> None:
        """Change the result and write it."""
        self.result = replace(self.result, **changes)  # pyright: ignore[reportArgumentType]
        save(self.result, self.entry.folder)

    def continue_from(self, result: Result) -> None:
        """Continue from this result; in memory only, until the next update."""
        self.owns_result = True
        self.result = replace(
            result, status="RUNNING", status_reason="", failure_kind=None, caveats=[]
        )

    def begin(self) -> None:
        """Write the files that precede any measurement, and start the tracker's run."""
        self.has_begun = True
        remove(self.entry.folder / DETAILS)
        # If the result has no explanation, such files belong to trials that the job does not keep.
        if self.result.explanation is None:
            for name in (EXPLANATION_FILE, TIMELINE_SVG, TIMELINE_TRACE):
                remove(self.entry.folder / name)
        # An existing profile is not made again, so a profile of other code would stay.
        if not self.result.trials:
            for path in self.entry.folder.glob("profile-*"):
                remove(path)
        write_text(self.entry.folder / "config.yaml", without_address_users(self.entry.config_yaml))
        self.update(recorded=False)
        self.update(run_id=self.tracking.start(self.result) or self.result.run_id)

    def keep(self) -> None:
        """Keep the earlier result as it is, and track it if the tracker has not received it all."""
        self.owns_result = True
        if not self.result.recorded:
            self.update(run_id=self.tracking.start(self.result) or self.result.run_id)
            self.update(recorded=self.tracking.finish(self.result, self.entry.folder))

    def fail(self, failure: Failure) -> None:
        """End the job as FAILED, with the failure's reason."""
        self.end("FAILED", failure)

    def end(self, status: Status, failure: Failure | None = None) -> None:
        """Write the final result, then log it with the tracker."""
        self._set_final_result(status, failure)
        try:
            self._write_final_result(failure)
        # The result is logged even if this disk is full: the tracker's disk may have space.
        finally:
            self.track()

    def finish(self) -> None:
        """End the job as FINISHED, and leave the logging of the result to a call of `track`."""
        self._set_final_result("FINISHED", None)
        self._write_final_result(None)

    def _set_final_result(self, status: Status, failure: Failure | None) -> None:
        """Set the final result, and first write the files of a job that has not begun."""
        self._ending = (status, failure)
        if not self.has_begun:
            self.begin()
        reason, kind = (failure.reason, failure.kind) if failure else ("", None)
        self.result = replace(self.result, status=status, status_reason=reason, failure_kind=kind)

    def _write_final_result(self, failure: Failure | None) -> None:
        """Write the result, and the details of the failure if there are any."""
        save(self.result, self.entry.folder)
        if failure and failure.details:
            write_text(self.entry.folder / DETAILS, without_passwords(failure.details))

    def track(self) -> None:
        """Log the result of a job that has ended and is not logged yet."""
        if self._ending is None:
            return
        if self.tracking.finish(self.result, self.entry.folder):
            self.update(recorded=True)
        self._ending = None

    def abort(self, status: Status, reason: str) -> None:
        """End the job because the sweep ends early.

        A job that has ended but is not logged yet is ended once more, with its own status. A job
        that is logged stays as it is.
        """
        if self._ending and not self.is_running:
            self.end(*self._ending)
        elif self.is_running:
            self.end(status, Failure(kind=FailureKind.ERROR, message=reason))

    @property
    def is_running(self) -> bool:
        """True from the moment when the job begins or is continued until it ends."""
        return self.owns_result and self.result.status == "RUNNING"

    @property
    def trial_numbers(self) -> set[int]:
        """Numbers of the finished trials."""
        return {trial.number for trial in self.result.trials}
