"""`tracker=none`: result files only; mlflow is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastloop.result import Result
from fastloop.types import option


@option
class NoTracker:
    """Results stay in their folders."""

    def start(self, result: Result) -> str:  # noqa: ARG002
        """No id."""
        return ""

    def finish(self, result: Result, folder: Path) -> None:
        """Nothing: the files are there already."""

    def attach(self, run_id: str, paths: Sequence[Path]) -> None:
        """Nothing: the files are there already."""

    def where(self, sweep: str) -> str:  # noqa: ARG002
        """No place."""
        return ""
