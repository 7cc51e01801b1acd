"""limit_stalls: interrupts work that makes no progress for some time, by a timer and SIGALRM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SHORTEST_S = 0.05
"""Limits below this many seconds are raised to it: with alarms that follow each other at once, the
interrupted code could not even unwind."""


# It is a BaseException, so that the user's `except Exception` does not swallow it.
class Stalled(BaseException):
    """No progress within the limit; the message names the line at which the work hangs."""


@contextmanager
def limit_stalls(limit_s: float) -> Iterator[None]:
    """Raise Stalled inside the context if note_progress is not called for that many seconds.

    There is a limit in the main thread only.
    """
    # Python runs handlers of signals in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_stalled(_: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown place"
        raise Stalled(f"no progress within {limit_s:g} s: {where}")

    before = signal.signal(signal.SIGALRM, raise_stalled)
    # The timer repeats at that interval, because code may catch the first Stalled, or lose it in a
    # __del__ or a callback from C.
    timer_s = max(limit_s, SHORTEST_S)
    signal.setitimer(signal.ITIMER_REAL, timer_s, timer_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def note_progress() -> None:
    """Start the limit again; does nothing without a limit. Takes about a microsecond."""
    # The interval of the running timer is the limit, and 0 if no timer runs.
    _, limit_s = signal.getitimer(signal.ITIMER_REAL)
    if limit_s:
        signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
