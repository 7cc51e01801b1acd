"""Describe how a command spent its time: in timed windows, and in each other stage of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from fastloop.core.machine_counters import process_begun_ns
from fastloop.core.number_text import show_duration
from fastloop.core.result import Result
from fastloop.core.spans import now_ns, seconds_between

ROUNDS = "rounds"
"""Name of the stage in which the trials run."""
START = "start"
"""Name of the stage before the sweep: the start of the process, with its imports."""
AROUND_WINDOWS = "processes, warm-ups, limits and comparing data around them"
"""Printed name of the part of the rounds outside of the timed windows."""


class StageClock:
    """A clock that measures the seconds of each stage of a sweep.

    The clock of a process's first sweep starts with the process, so that the imports count.
    """

    _is_first: ClassVar[bool] = True
    """True until this process has made a clock."""

    def __init__(self) -> None:
        # A suite runs several sweeps in one process: the clocks of later sweeps start now.
        self._begun_ns = process_begun_ns() if StageClock._is_first else now_ns()
        StageClock._is_first = False
        self._seconds: dict[str, float] = {}
        self.end(START)

    def end(self, stage: str) -> None:
        """Add the time since the last call to this stage; the next stage begins now."""
        stop_ns = now_ns()
        before_s = self._seconds.get(stage, 0.0)
        self._seconds[stage] = before_s + seconds_between(self._begun_ns, stop_ns)
        self._begun_ns = stop_ns

    def stages(self) -> dict[str, float]:
        """Seconds by stage so far."""
        return dict(self._seconds)


def describe_time(results: Sequence[Result], stages: Mapping[str, float]) -> str:
    """A line with the command's time so far, the time in timed windows, and the time of the rest.

    results: those of all jobs. stages: name of each stage -> its seconds, as `StageClock.stages`
    returns them.
    """
    rounds_s = stages.get(ROUNDS, 0.0)
    # A session is one run of the command. Results also have trials of earlier sessions, which took
    # none of this command's time, so only the trials of the latest session count. If this command
    # has run no trial, the latest session is an earlier one, and min() limits its time below.
    latest_ms = max((trial.session_ms for each in results for trial in each.trials), default=0)
    timed_s = min(rounds_s, sum(seconds_in_windows(each, latest_ms) for each in results))
    total_s = sum(stages.values())
    # The rounds consist of timed windows and of the work around these windows.
    rest = {name: seconds for name, seconds in stages.items() if name != ROUNDS}
    rest[AROUND_WINDOWS] = rounds_s - timed_s
    parts = [
        f"{show_duration(seconds)} {name}"
        for name, seconds in sorted(rest.items(), key=lambda item: -item[1])
        if round(seconds) > 0
    ]
    line = f"of {show_duration(total_s)}, {show_duration(timed_s)} were timed"
    return f"{line}; the rest: {', '.join(parts)}" if parts else line


def seconds_in_windows(result: Result, session_ms: int) -> float:
    """Seconds of the job's timed windows in one session.

    session_ms: the start of the session in milliseconds since 1970, which each of its trials has
    recorded.
    """
    return sum(
        seconds_between(measured.start_ns, measured.stop_ns)
        for trial in result.trials
        if trial.session_ms == session_ms
        for measured in trial.benchmarks.values()
    )
