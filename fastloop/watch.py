"""Waiting for several processes at once, no longer than allowed, looking at them now and then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from fastloop.child import Child, Outcome
from fastloop.resources import Resources, Usage, sample
from fastloop.spans import cpu_ns, now_ns, seconds_between

SAMPLE_S = 0.2
"""Looks at observed processes are at least so far apart."""
SAMPLER_SHARE = 0.01
SAMPLER_CREDIT_S = 0.2
"""Looking takes no more CPU time than that share of one core and this once, so that a short pass is
looked at often and a long one costs nothing: a look takes 10 ms a process, see
experiments/sampler.md."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a rank has come to."""

    number: int
    """Of the call that it is an answer to."""
    rank: int
    outcome: Outcome
    resources: Resources | None = None
    """What it and its children took, from its start to its answer; None where nobody looked."""


class LineIsDead(Exception):  # noqa: N818 - a state of the watch
    """Whoever is at the other end of the line has ended."""

    def __init__(self, line: Connection) -> None:
        super().__init__()
        self.line = line


class TimeIsOver(Exception):  # noqa: N818 - a state of the watch
    """Nothing has come for as long as it was to be waited for."""


class Watch:
    """Over children from now on; those that are observed are looked at."""

    def __init__(
        self, children: Sequence[Child], timeout_s: float | None = None, observed: bool = False
    ) -> None:
        self.working = list(children)
        """Those that have not answered."""
        self._usages = {child.pid: Usage() for child in children} if observed else {}
        self._timeout_s = timeout_s
        self._start_ns = now_ns()
        self._spent_s = 0.0

    def hurry(self, within_s: float) -> None:
        """From now on wait no longer than that in all."""
        self._timeout_s = seconds_between(self._start_ns, now_ns()) + within_s

    def next(self, lines: Sequence[Connection] = ()) -> Any:
        """A child's Answer, or what has come over a line; blocks until there is one.

        Raises TimeIsOver and LineIsDead.
        """
        handles = [handle for child in self.working for handle in child.handles]
        ready = self._ready([*handles, *lines])
        for child in self.working:
            if any(handle in ready for handle in child.handles):
                return self._answer(child)
        line = next(one for one in lines if one in ready)
        try:
            return line.recv()
        except (EOFError, OSError):
            raise LineIsDead(line) from None

    def _answer(self, child: Child) -> Answer:
        self.working.remove(child)
        resources = None
        if usage := self._usages.pop(child.pid, None):
            usage.add(sample(child.pid))  # it is held: the counters' last values
            resources = usage.resources(seconds_between(self._start_ns, now_ns()))
        number, rank = child.call.number, child.call.rank
        return Answer(number=number, rank=rank, outcome=child.outcome(), resources=resources)

    def _ready(self, handles: list[Any]) -> list[Any]:
        ready: list[Any] = []
        while not ready:
            passed_s = seconds_between(self._start_ns, now_ns())
            left_s = None if self._timeout_s is None else max(0.0, self._timeout_s - passed_s)
            ready = wait(handles, _sooner(left_s, self._pause_s(passed_s)))
            if not ready and left_s == 0:
                raise TimeIsOver
        return ready

    def _pause_s(self, passed_s: float) -> float | None:
        """Look at the observed; then seconds until the next look."""
        if not self._usages:
            return None
        before_ns = cpu_ns()
        for pid, usage in self._usages.items():
            usage.add(sample(pid))
        self._spent_s += seconds_between(before_ns, cpu_ns())
        return max(SAMPLE_S, (self._spent_s - SAMPLER_CREDIT_S) / SAMPLER_SHARE - passed_s)


def _sooner(left_s: float | None, pause_s: float | None) -> float | None:
    given = [one for one in (left_s, pause_s) if one is not None]
    return min(given, default=None)
