"""Interrupt work that makes no progress for some time, by a timer that sends SIGALRM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SHORTEST_S = 0.05
"""Minimum limit in seconds; a shorter limit is raised to this one. If alarms followed each other at
once, the interrupted code could not even unwind."""


# Stalled is a BaseException, so that `except Exception` in the user's code does not swallow it.
class Stalled(BaseException):
    """Work has made no progress within its limit; the message names the line at which it hangs."""


@contextmanager
def limit_stalls(limit_s: float) -> Iterator[None]:
    """Raise Stalled inside the context if note_progress is not called for `limit_s` seconds.

    In threads other than the main one, there is no limit.
    """
    # Python runs signal handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_stalled(_: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown place"
        raise Stalled(f"no progress within {limit_s:g} s: {where}")

    before = signal.signal(signal.SIGALRM, raise_stalled)
    # The timer fires again after each interval, because the first Stalled may be caught, or lost in
    # a __del__ or in a callback from C.
    timer_s = max(limit_s, SHORTEST_S)
    signal.setitimer(signal.ITIMER_REAL, timer_s, timer_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def note_progress() -> None:
    """Restart the time of the present limit, if there is one, in about a microsecond."""
    # The interval of the timer is the limit in seconds; an interval of 0 means that no timer runs.
    _, limit_s = signal.getitimer(signal.ITIMER_REAL)
    if limit_s:
        signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
