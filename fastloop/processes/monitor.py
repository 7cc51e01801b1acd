"""Wait for the answers of several children within a time limit, and sample their resources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from fastloop.core.result import Resources
from fastloop.core.spans import cpu_ns, now_ns, seconds_between
from fastloop.processes.child_process import Child, Outcome
from fastloop.processes.resources import Usage, sample
from fastloop.processes.stall_watch import StallWatch

SAMPLE_INTERVAL_S = 0.2
"""Minimum time between two samples of the observed processes."""
SAMPLER_SHARE = 0.01
SAMPLER_CREDIT_S = 0.2
"""Sampling takes at most SAMPLER_SHARE of one core, plus SAMPLER_CREDIT_S once: a short pass is
sampled often, and a long one is not slowed down. A sample takes 10 ms a process, see
experiments/sampler."""


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


class MonitorTimeout(Exception):  # noqa: N818 - an event, too
    """The time limit has passed."""


class Monitor:
    """Waits for the answers of children.

    timeout_s: time limit for all answers, from construction on; None: no limit. observed:
    sample the resources of the children while waiting. watch: reports children that stand still;
    None: no reports.
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
        self._usages = {child.pid: Usage() for child in children} if observed else {}
        self._timeout_s = timeout_s
        self._watch = watch
        self._start_ns = now_ns()
        self._sampling_s = 0.0

    def shorten(self, within_s: float) -> None:
        """Wait no longer than `within_s` from now on."""
        self._timeout_s = seconds_between(self._start_ns, now_ns()) + within_s

    def next(self, inboxes: Sequence[Connection] = ()) -> Any:
        """Block until a child answers or a message arrives; return the Answer or the message.

        Raises MonitorTimeout and EndOfMessages.
        """
        handles = [handle for child in self.pending for handle in child.handles]
        ready = self._wait([*handles, *inboxes])
        for child in self.pending:
            if any(handle in ready for handle in child.handles):
                return self._answer(child)
        inbox = next(inbox for inbox in inboxes if inbox in ready)
        try:
            return inbox.recv()
        except (EOFError, OSError):
            raise EndOfMessages from None

    def _answer(self, child: Child) -> Answer:
        """Receive the answer of a child, with a last sample of its resources."""
        self.pending.remove(child)
        if self._watch is not None:
            self._watch.forget(child)
        resources = None
        if usage := self._usages.pop(child.pid, None):
            # A child that has answered waits to be released: its last counters can still be read.
            usage.add(sample(child.pid))
            resources = usage.resources(seconds_between(self._start_ns, now_ns()))
        number, rank = child.call.number, child.call.rank
        return Answer(
            number=number, rank=rank, outcome=child.receive_outcome(), resources=resources
        )

    def _wait(self, handles: list[Any]) -> list[Any]:
        """Wait until a handle is ready, and meanwhile take samples; raises MonitorTimeout."""
        ready: list[Any] = []
        while not ready:
            passed_s = seconds_between(self._start_ns, now_ns())
            # Whatever comes first: the time limit, the next sample, or the next look at
            # standstills.
            left_s = None if self._timeout_s is None else max(0.0, self._timeout_s - passed_s)
            watch_s = self._watch.check() if self._watch is not None else None
            limits = [left_s, self._sample(passed_s), watch_s]
            limits = [limit for limit in limits if limit is not None]
            ready = wait(handles, min(limits, default=None))
            if not ready and left_s == 0:
                raise MonitorTimeout
        return ready

    def _sample(self, passed_s: float) -> float | None:
        """Sample the observed processes, if any; return the seconds until the next sample."""
        if not self._usages:
            return None
        before_ns = cpu_ns()
        for pid, usage in self._usages.items():
            usage.add(sample(pid))
        self._sampling_s += seconds_between(before_ns, cpu_ns())
        due_s = (self._sampling_s - SAMPLER_CREDIT_S) / SAMPLER_SHARE
        return max(SAMPLE_INTERVAL_S, due_s - passed_s)
