"""A tracker that may get lost: said once, waited for once; what is measured is in files already."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tqdm import tqdm

from fastloop.ends import Tracker
from fastloop.result import Result


class Tracking:
    """A sweep's tracker until it fails for the first time, and nothing from then on."""

    def __init__(self, tracker: Tracker, sweep_folder: Path) -> None:
        self.tracker = tracker
        self.sweep_folder = sweep_folder
        self.is_lost = False

    def start(self, result: Result) -> str:
        """The id of the job's run; empty where the tracker is lost or keeps none."""
        with self._said_if_it_fails():
            return "" if self.is_lost else self.tracker.start(result)
        return ""

    def finish(self, result: Result, folder: Path) -> bool:
        """True where the tracker has all of it now."""
        if self.is_lost or not result.run_id:
            return False
        with self._said_if_it_fails():
            self.tracker.finish(result, folder)
            return True
        return False

    def attach(self, result: Result, paths: Sequence[Path]) -> None:
        """Keep files with the job's run that were made after its end."""
        if not self.is_lost and result.run_id:
            with self._said_if_it_fails():
                self.tracker.attach(result.run_id, paths)

    def where(self, sweep: str) -> str:
        """Where a person finds the sweep, or how it gets there later."""
        with self._said_if_it_fails():
            if not self.is_lost:
                return self.tracker.where(sweep)
        return f"later:  python -m fastloop.record {self.sweep_folder}"

    @contextlib.contextmanager
    def _said_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.is_lost = True
            said = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {said[0]}"
            # tqdm's own print, which does not write into the middle of its bar
            tqdm.write(f"the tracker is lost, files go on: {why}", file=sys.stderr)
