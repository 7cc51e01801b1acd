"""Watch the child processes of a call, and report a child that has done no work for STALL_S.

A child tells the command nothing about its progress, so its work is judged from outside: by the CPU
time of the process and its children, and by the bytes that they read from files. A loader that
sleeps on purpose looks the same as a loader that hangs. So only these facts are reported, once for
each standstill, and nothing is ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

from fastloop.core.spans import now_ns, seconds_between
from fastloop.processes.child_process import Child

STALL_S = 30.0
"""Time without any work after which a standstill is reported."""
CHECKS_PER_STALL = 3
"""Number of checks of the processes within STALL_S; each takes some milliseconds."""
IDLE_SHARE, IDLE_S = 0.01, 0.02
"""Threads that only wait use CPU time of at most this share of the elapsed time, plus IDLE_S."""
IDLE_BYTES = 1 << 20
"""Processes that only wait read at most this many bytes."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """Work of a process and its living children since they began."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    """Bytes read by system calls."""


@dataclass(kw_only=True)
class _Standstill:
    """The last moment at which a process was seen to work."""

    since_ns: int
    activity: Activity
    is_told: bool = False
    """True once the standstill was reported."""


class StallWatch:
    """Watches children for standstills of STALL_S.

    tell: called with the child, the seconds that it has stood still, and the CPU time that it has
    used meanwhile. clock: returns the time in nanoseconds. look: returns the work of a process so
    far.
    """

    def __init__(
        self,
        children: Sequence[Child],
        tell: Callable[[Child, float, float], None],
        clock: Callable[[], int] = now_ns,
        look: Callable[[int], Activity] | None = None,
    ) -> None:
        self._children = list(children)
        self._tell = tell
        self._clock = clock
        self._look = look or activity_of
        self._seen: dict[int, _Standstill] = {}
        self._due_ns = clock() + self._interval_ns

    @property
    def _interval_ns(self) -> int:
        return int(1e9 * STALL_S / CHECKS_PER_STALL)

    def check(self) -> float:
        """Look at the children if it is time to; returns the seconds until the next look."""
        now = self._clock()
        if now >= self._due_ns:
            for child in self._children:
                self._check(child, now)
            self._due_ns = self._clock() + self._interval_ns
        return seconds_between(self._clock(), self._due_ns)

    def forget(self, child: Child) -> None:
        """Stop watching this child, because it has answered."""
        if child in self._children:
            self._children.remove(child)

    def _check(self, child: Child, now: int) -> None:
        """Look at a child, and report it once if it has stood still for STALL_S."""
        activity = self._look(child.pid)
        before = self._seen.get(child.pid)
        if before is None or _has_worked(before, activity, now):
            self._seen[child.pid] = _Standstill(since_ns=now, activity=activity)
            return
        still_s = seconds_between(before.since_ns, now)
        if still_s >= STALL_S and not before.is_told:
            before.is_told = True
            self._tell(child, still_s, activity.cpu_s - before.activity.cpu_s)


def activity_of(pid: int) -> Activity:
    """CPU time of the process and its children, and bytes that they have read by system calls."""
    cpu_s = 0.0
    read_bytes = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            # The process may have ended; macOS has no io_counters().
            with contextlib.suppress(psutil.Error, AttributeError):
                times = each.cpu_times()
                cpu_s += times.user + times.system
                read_bytes += each.io_counters().read_chars  # pyright: ignore[reportAttributeAccessIssue]
    return Activity(cpu_s=cpu_s, read_bytes=read_bytes)


def _has_worked(before: _Standstill, activity: Activity, now: int) -> bool:
    """True if there was more work than waiting threads do, or if a child has ended."""
    cpu_s = activity.cpu_s - before.activity.cpu_s
    nbytes = activity.read_bytes - before.activity.read_bytes
    most_s = IDLE_S + IDLE_SHARE * seconds_between(before.since_ns, now)
    # A negative difference: a child has ended, and its counters are missing in the sum.
    return not (0 <= cpu_s <= most_s and 0 <= nbytes <= IDLE_BYTES)
