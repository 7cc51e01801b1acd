"""A limit on the time without progress, for work whose whole length is not known in advance."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SHORTEST_S = 0.05
"""Shorter limits count as this one: alarms that follow each other at once leave no time to end."""


class Stalled(BaseException):
    """No progress within the limit; the message says where the work hangs."""


@contextmanager
def limit_stalls(limit_s: float) -> Iterator[None]:
    """Raise Stalled inside the context if note_progress is not called for that many seconds.

    Only the main thread can be interrupted; in any other there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def raise_stalled(_: int, frame: FrameType | None) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "an unknown place"
        raise Stalled(f"no progress within {limit_s:g} s: {where}")

    before = signal.signal(signal.SIGALRM, raise_stalled)
    timer_s = max(limit_s, SHORTEST_S)
    signal.setitimer(signal.ITIMER_REAL, timer_s, timer_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def note_progress() -> None:
    """Start the time of the limit anew; nothing without a limit. Takes about a microsecond."""
    _, limit_s = signal.getitimer(signal.ITIMER_REAL)
    if limit_s:
        signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)
