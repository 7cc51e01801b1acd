"""Launcher: the Protocol of options that start the processes of a job; with the call that each rank
makes there, RankTask, and its answer, RankAnswer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from fastloop.core.result import Resources


@dataclass(frozen=True, kw_only=True)
class RankTask:
    """A call that every rank of a job makes at the same time."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    command: Mapping[str, Any] = field(default_factory=dict)
    """The call as JSON, for ranks that have composed the same jobs, see trial/tasks.py."""
    answer_type: Any = None
    """Type of the returned value, by which pydantic converts it to and from JSON."""
    title: str = ""
    """The name of the call in messages, such as `trial 2 of raw digits`."""


@dataclass(frozen=True, kw_only=True)
class RankAnswer:
    """Return value and resources of one rank's call."""

    value: Any
    resources: Resources | None
    """The resources that the process used; None if they were not sampled."""
    left_running: tuple[str, ...] = ()
    """Commands that the rank left running on this node, and that were then ended."""


@runtime_checkable
class Launcher(Protocol):
    """Starts the processes of a job."""

    environment: Path | None
    """Folder of the environment from which the processes start; None: this process's own."""

    @property
    def world_size(self) -> int:
        """Number of processes that run a trial together."""
        ...

    def check(self, device: torch.device) -> None:
        """Raise Unsupported if this machine can't run these processes on the device."""
        ...

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """Return function(*args), called in one new process. Raises JobFailed."""
        ...

    def call_ranks(
        self, task: RankTask, *, timeout_s: float | None = None, observed: bool = False
    ) -> list[RankAnswer]:
        """The answers of all ranks, in order, each from a new process. Raises JobFailed.

        observed: sample the resources of each process while it works.
        """
        ...
