"""Log a sweep with a tracker, such as MLflow, that may fail without harm to the sweep.

No result is lost, because results are written to files first.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from tqdm import tqdm

from fastloop.core.passwords import without_passwords
from fastloop.core.protocols import Tracker
from fastloop.core.result import Result
from fastloop.core.text import first_line
from fastloop.core.types import UsageError


class SweepTracker:
    """A sweep's tracker; after one of its calls has failed, the tracker is not called again.

    So the failure is reported once, and an unresponsive server delays a sweep only once.

    sweep_folder: the folder of the sweep's results, from which a lost sweep can be tracked later.
    """

    def __init__(self, tracker: Tracker, sweep_folder: Path) -> None:
        self.tracker = tracker
        self.sweep_folder = sweep_folder
        self.is_lost = False
        """True after a call of the tracker has failed."""

    def start(self, result: Result) -> str:
        """Start the job's run in the tracker, and return the run's id.

        The id is empty if the tracker is lost or has no runs.
        """
        with self._report_failure():
            return "" if self.is_lost else self.tracker.start(result)
        return ""

    def finish(self, result: Result, folder: Path) -> bool:
        """Log the result and end its run; returns True if the tracker has received everything.

        folder: the job's folder, with the files that are logged, too.
        """
        if self.is_lost or not result.run_id:
            return False
        with self._report_failure():
            self.tracker.finish(result, folder)
            return True
        return False

    def attach(self, result: Result, paths: Sequence[Path]) -> None:
        """Add files that were written after the end of the job's run to that run."""
        if not self.is_lost and result.run_id:
            with self._report_failure():
                self.tracker.attach(result.run_id, paths)

    def where(self, sweep: str) -> str:
        """Lines with the place of the tracked sweep, or with the command that tracks it later.

        Empty if results are not tracked.

        sweep: the value of the tag `sweep` of the sweep's results.
        """
        with self._report_failure():
            if not self.is_lost:
                return self.tracker.where(sweep)
        return f"later:  fastloop log {quote(str(self.sweep_folder))}"

    @contextlib.contextmanager
    def _report_failure(self) -> Iterator[None]:
        """Report an error of the tracker in a line, and stop using the tracker."""
        try:
            yield
        except Exception as error:
            self.is_lost = True
            message = first_line(error)
            # A UsageError names the setting, and needs no class.
            named = not isinstance(error, UsageError)
            reason = without_passwords(f"{type(error).__name__}: {message}" if named else message)
            # tqdm.write, unlike print, does not disrupt a progress bar.
            tqdm.write(
                f"the tracker is lost, results are still written to files: {reason}",
                file=sys.stderr,
            )
