"""A job of a sweep on its way through the rounds: its result so far, on disk after every change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fastloop.ends import Launcher
from fastloop.files import remove, write_text
from fastloop.job import Job
from fastloop.result import Result, save
from fastloop.tracking import Tracking
from fastloop.types import Prepared

DETAILS = "traceback.txt"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A job of a sweep, where its files go, and what they say about it before it is run."""

    job: Job
    launcher: Launcher
    folder: Path
    config_yaml: str
    result: Result
    earlier: Result | None = None
    """What an interrupted sweep has left of it."""


class Row:
    """One entry's present state.

    What an earlier sweep has left of it stays untouched on the disk until it is taken up.
    """

    def __init__(self, entry: Entry, tracking: Tracking) -> None:
        self.entry = entry
        self.tracking = tracking
        self.result = entry.earlier or entry.result
        self.prepared: Prepared | None = None
        self.is_taken_up = entry.earlier is None
        self._is_begun = False
        self._is_ending = False

    def update(self, **changes: object) -> None:
        """Change the result and write it."""
        self.result = replace(self.result, **changes)  # pyright: ignore[reportArgumentType]
        save(self.result, self.entry.folder)

    def take_up(self, result: Result) -> None:
        """Go on from this result, in memory."""
        self.is_taken_up = True
        self.result = replace(result, status="RUNNING", status_reason="", flags=[])

    def begin(self) -> None:
        """Write what is known before anything is measured, and begin the tracker's run."""
        self._is_begun = True
        remove(self.entry.folder / DETAILS)
        write_text(self.entry.folder / "config.yaml", self.entry.config_yaml)
        self.update(recorded=False)
        self.update(run_id=self.tracking.start(self.result) or self.result.run_id)

    def keep(self) -> None:
        """Leave an earlier result as it is, but for a tracker that has not got all of it."""
        self.is_taken_up = True
        if not self.result.recorded:
            self.update(run_id=self.tracking.start(self.result) or self.result.run_id)
            self.update(recorded=self.tracking.finish(self.result, self.entry.folder))

    def end(self, status: str, reason: str = "", details: str = "") -> None:
        """Write the result's end, then tell the tracker: files first."""
        self._is_ending = True
        if not self._is_begun:
            self.begin()
        self.result = replace(self.result, status=status, status_reason=reason)  # pyright: ignore[reportArgumentType]
        try:
            save(self.result, self.entry.folder)
            if details:
                write_text(self.entry.folder / DETAILS, details)
        finally:  # the tracker may well have room where the disk is full
            recorded = self.tracking.finish(self.result, self.entry.folder)
        if recorded:
            self.update(recorded=True)
        self._is_ending = False

    def cut_short(self, status: str, reason: str) -> None:
        """End it because the sweep ends; what was just ending ends as it was about to."""
        if self._is_ending and not self.runs:
            self.end(self.result.status, self.result.status_reason)
        elif self.runs:
            self.end(status, reason)

    @property
    def runs(self) -> bool:
        """True from when it is taken up until it has ended."""
        return self.is_taken_up and self.result.status == "RUNNING"

    @property
    def done(self) -> set[int]:
        """Numbers of the trials that are finished."""
        return {trial.number for trial in self.result.trials}
