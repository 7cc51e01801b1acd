"""Receive the answers of several child processes within a time limit, while their resources and
standstills are observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from fastloop.core.result import Resources
from fastloop.core.spans import now_ns, seconds_between
from fastloop.processes.child_process import Child, Outcome
from fastloop.processes.resources import ResourceSampler
from fastloop.processes.stall_watch import StallWatch


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Outcome of a rank's call, with the resources that it used."""

    number: int
    """Number of the call."""
    rank: int
    outcome: Outcome
    resources: Resources | None = None
    """Resources that the process and its children have used until its answer; None if they were not
    observed."""


class EndOfMessages(Exception):  # noqa: N818 - an event, which the caller turns into a failure
    """An inbox is closed: no more messages can be received from it."""


class AnswerTimeout(Exception):  # noqa: N818 - an event, too
    """The time limit has passed before the next answer or message."""


class AnswerReceiver:
    """Receives the answers of child processes, and messages of other ranks, as they arrive.

    timeout_s: time limit for all answers, in seconds from construction on; None: no limit.
    observed: sample the resources of the children while waiting. watch: reports children that stand
    still; None: no reports.
    """

    def __init__(
        self,
        children: Sequence[Child],
        timeout_s: float | None = None,
        observed: bool = False,
        watch: StallWatch | None = None,
    ) -> None:
        self.pending = list(children)
        """Children that have not answered yet."""
        self._sampler = ResourceSampler(child.pid for child in children if observed)
        self._timeout_s = timeout_s
        self._watch = watch
        self._start_ns = now_ns()

    def shorten(self, within_s: float) -> None:
        """Move the time limit to `within_s` seconds from now on."""
        self._timeout_s = seconds_between(self._start_ns, now_ns()) + within_s

    def receive(self, inboxes: Sequence[Connection] = ()) -> Any:
        """Block until a child answers or a message arrives; return the Answer or the message.

        inboxes: connections from which messages may arrive. Raises AnswerTimeout, and EndOfMessages
        if an inbox is closed.
        """
        handles = [handle for child in self.pending for handle in child.handles]
        ready = self._wait([*handles, *inboxes])
        for child in self.pending:
            if any(handle in ready for handle in child.handles):
                return self._receive_answer(child)
        inbox = next(inbox for inbox in inboxes if inbox in ready)
        try:
            return inbox.recv()
        except (EOFError, OSError):
            raise EndOfMessages from None

    def _receive_answer(self, child: Child) -> Answer:
        """Receive the answer of a child, and finish the observation of the child."""
        self.pending.remove(child)
        if self._watch is not None:
            self._watch.forget(child)
        # A child that has answered waits to be released: its last counters can still be read.
        resources = self._sampler.finish(child.pid)
        number, rank = child.call.number, child.call.rank
        return Answer(
            number=number, rank=rank, outcome=child.receive_outcome(), resources=resources
        )

    def _wait(self, handles: list[Any]) -> list[Any]:
        """Wait until a handle is ready, and meanwhile take samples; raises AnswerTimeout."""
        ready: list[Any] = []
        while not ready:
            passed_s = seconds_between(self._start_ns, now_ns())
            # The wait ends at the time limit, the next sample or the next look at standstills.
            left_s = None if self._timeout_s is None else max(0.0, self._timeout_s - passed_s)
            watch_s = self._watch.check() if self._watch is not None else None
            limits = [left_s, self._sampler.sample_all(), watch_s]
            limits = [limit for limit in limits if limit is not None]
            ready = wait(handles, min(limits, default=None))
            if not ready and left_s == 0:
                raise AnswerTimeout
        return ready
