"""The shapes of what a sweep has at its ends: who starts the processes, and who keeps the results.

Options satisfy them as those of a job do theirs, see protocols.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

if TYPE_CHECKING:
    from fastloop.crew import Member
    from fastloop.resources import Resources
    from fastloop.result import Result


@runtime_checkable
class Launcher(Protocol):
    """Who starts the processes that do the work."""

    @property
    def world_size(self) -> int:
        """How many do a trial together."""
        ...

    @property
    def member(self) -> Member:
        """What this process is among those that start some."""
        ...

    def check(self, device: torch.device) -> None:
        """Raise Unsupported where they can't be had here for such a device."""
        ...

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """function(*args), done in a fresh process; raises JobFailed when that ends otherwise."""
        ...

    def call_ranks(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float | None = None,
        observed: bool = False,
    ) -> list[tuple[Any, Resources | None]]:
        """The same by every process of a trial: by rank what it gave, and, with `observed`, what it
        and its children took; None where nobody looked."""
        ...


@runtime_checkable
class Tracker(Protocol):
    """Where results are kept for comparison."""

    def start(self, result: Result) -> str:
        """The id of a new run for a job that is about to be measured."""
        ...

    def finish(self, result: Result, folder: Path) -> None:
        """Log the figures and the folder's files, and end the run with the result's status."""
        ...

    def attach(self, run_id: str, paths: Sequence[Path]) -> None:
        """Keep these files with the run, which may have ended."""
        ...

    def where(self, sweep: str) -> str:
        """How a person can compare the sweep's runs, in lines; empty without such a place."""
        ...
