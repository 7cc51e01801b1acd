"""`tracker=none`: result files only; mlflow is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastloop.core.result import Result
from fastloop.core.types import option


@option
class NoTracker:
    """No tracker: results are only files in their folders."""

    def start(self, result: Result) -> str:  # noqa: ARG002
        """An empty run id."""
        return ""

    def finish(self, result: Result, folder: Path) -> None:
        """Do nothing; the files exist already."""

    def attach(self, run_id: str, paths: Sequence[Path]) -> None:
        """Do nothing; the files exist already."""

    def where(self, sweep: str) -> str:  # noqa: ARG002
        """An empty address."""
        return ""
