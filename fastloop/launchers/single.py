"""`launcher=single`: one process a trial on this machine, one trial at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch

from fastloop.child import Call, done
from fastloop.crew import Member, Work, answers_of
from fastloop.resources import Resources
from fastloop.types import JobFailed, option


@option
class Single:
    """`forkserver`: forked from a server that has torch imported; `spawn`: a new Python;
    `inline`: this process, for debugging."""

    world_size: ClassVar[int] = 1
    member: ClassVar[Member] = Member()
    isolation: Literal["forkserver", "spawn", "inline"]

    def check(self, device: torch.device) -> None:
        """One process can be had everywhere."""

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> Any:
        """function(*args) in a fresh process; this one blocks meanwhile. Raises JobFailed."""
        return self.call_ranks(function, *args, timeout_s=timeout_s)[0][0]

    def call_ranks(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout_s: float | None = None,
        observed: bool = False,
    ) -> list[tuple[Any, Resources | None]]:
        """The same; with `observed` and what that process and its children took."""
        if self.isolation == "inline":
            outcome = done(Call(function=function, args=args))
            if outcome.reason:
                raise JobFailed(outcome.reason, outcome.details)
            return [(outcome.value, None)]
        work = Work(
            function=function,
            args=args,
            isolation=self.isolation,
            observed=observed,
            ranks=1,
            backend=None,
            timeout_s=timeout_s,
        )
        return [(one.outcome.value, one.resources) for one in answers_of(self.member, work)]
