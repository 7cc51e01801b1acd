"""The state of a job while its sweep runs: the result so far, written after every change."""

from __future__ import annotations

import secrets
from dataclasses import replace

from fastloop.core.atomic_files import remove, write_text
from fastloop.core.auto_trials import fewest_trials
from fastloop.core.explanation import EXPLANATION_FILE, TIMELINE_SVG, TIMELINE_TRACE
from fastloop.core.passwords import without_address_users, without_passwords
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Result, Status
from fastloop.core.result_io import save
from fastloop.core.types import Failure, FailureKind
from fastloop.sweep.sweep_job import SweepJob
from fastloop.sweep.tracking import SweepTracker

DETAILS = "traceback.txt"
"""Name of the file with the traceback, or the stacks, of a job that failed."""


class JobState:
    """The present state of one job of a sweep.

    A job with a result from an interrupted sweep begins as `earlier`: that result is on disk, and
    must not be overwritten yet. Any other job begins as `running`. A job is `ended` once its result
    is final, and `logged` once the final result has been given to the tracker. These methods take a
    job from state to state:

    method         from              to
    continue_from  earlier           running
    keep           earlier           logged
    begin          running           running, with its first files written
    finish         running           ended
    track          ended             logged
    fail           running           logged
    abort          running or ended  logged
    """

    def __init__(self, entry: SweepJob, tracking: SweepTracker) -> None:
        self.entry = entry
        self.tracking = tracking
        self.result = entry.earlier or entry.result
        self.prepared: PreparedData | None = None
        self.owns_result = entry.earlier is None
        """False in the state `earlier`."""
        # The number is drawn at random, so that no loader can foresee which of its trials is
        # compared. It is below the fewest trials, because with trials=auto nobody knows whether a
        # later one will run.
        self.shadow_number: int | None = secrets.randbelow(fewest_trials(entry.job.trials))
        """Number of the trial that is run again with all of its data compared; None: the last
        trial, after all have run. A schedule may set another value."""
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

    def finish(self) -> None:
        """End the job as FINISHED, and leave the logging of the result to a call of `track`."""
        self._end("FINISHED", None)

    def fail(self, failure: Failure) -> None:
        """End the job as FAILED, with the failure's reason, and log the result."""
        self._end_and_track("FAILED", failure)

    def abort(self, status: Status, reason: str) -> None:
        """End the job because the sweep ends early, and log the result.

        A job that has ended but is not logged yet is ended once more, with its own status. A job
        in the state `earlier` or `logged` stays as it is.
        """
        if self.is_running:
            self._end_and_track(status, Failure(kind=FailureKind.ERROR, message=reason))
        elif self._ending:
            self._end_and_track(*self._ending)

    def track(self) -> None:
        """Log the result of a job that has ended and is not logged yet."""
        if self._ending is None:
            return
        if self.tracking.finish(self.result, self.entry.folder):
            self.update(recorded=True)
        self._ending = None

    def _end_and_track(self, status: Status, failure: Failure | None) -> None:
        """End the job, and log the result."""
        try:
            self._end(status, failure)
        # The result is logged even if this disk is full: the tracker's disk may have space.
        finally:
            self.track()

    def _end(self, status: Status, failure: Failure | None) -> None:
        """Write the final result, and the details of the failure if there are any."""
        if not self.has_begun:
            self.begin()
        self._ending = (status, failure)
        reason, kind = (failure.reason, failure.kind) if failure else ("", None)
        self.update(status=status, status_reason=reason, failure_kind=kind)
        if failure and failure.details:
            write_text(self.entry.folder / DETAILS, without_passwords(failure.details))

    @property
    def is_running(self) -> bool:
        """True in the state `running`."""
        return self.owns_result and self.result.status == "RUNNING"

    @property
    def trial_numbers(self) -> set[int]:
        """Numbers of the finished trials."""
        return {trial.number for trial in self.result.trials}
