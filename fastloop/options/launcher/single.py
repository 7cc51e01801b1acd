"""`launcher=single`: one process per trial on this machine, one trial at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from fastloop.core.launcher import RankAnswer, RankTask
from fastloop.core.types import JobFailed, Unsupported, option
from fastloop.processes.child_process import Call, run_call
from fastloop.processes.rank_children import RankWork
from fastloop.processes.run_ranks import run_ranks


@option
class SingleLauncher:
    """Runs each trial in a single process on this machine."""

    world_size: ClassVar[int] = 1
    isolation: Literal["forkserver", "spawn", "inline"]
    """forkserver: the process is forked from a server that has imported torch; spawn: a new Python
    is started; inline: the trial runs in this process, for debugging, without a time limit and
    without observing resources."""
    environment: Path | None = None
    """Folder of the Python environment that the job's requirements need, in which processes are
    always spawned; None: the job has no such requirements."""

    def check(self, device: torch.device) -> None:  # noqa: ARG002 - any device will do
        """Accept every device; raise Unsupported for isolation=inline with an environment."""
        if self.isolation == "inline" and self.environment is not None:
            reason = "its requirements need an environment, and so a process, of their own"
            raise Unsupported(f"isolation=inline: {reason}")

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """function(*args), computed in a new process while this one blocks. Raises JobFailed."""
        return self.call_ranks(RankTask(function=function, args=args), timeout_s=timeout_s)[0].value

    def call_ranks(
        self, task: RankTask, *, timeout_s: float | None = None, observed: bool = False
    ) -> list[RankAnswer]:
        """The answer of the only rank, in a list. Raises JobFailed.

        With isolation=inline, `timeout_s` and `observed` have no effect: only another process can
        end a call, and observe its resources.
        """
        # The call is made in this process, so that a debugger can stop in it.
        if self.isolation == "inline":
            outcome = run_call(Call(function=task.function, args=task.args))
            if outcome.failure:
                raise JobFailed(outcome.failure)
            return [RankAnswer(value=outcome.value, resources=None)]
        work = RankWork(
            task=task,
            isolation=self.isolation,
            backend=None,
            ranks=1,
            timeout_s=timeout_s,
            observed=observed,
            environment=self.environment,
        )
        return run_ranks(work)
