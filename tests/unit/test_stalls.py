"""Limit of the time without progress."""

from __future__ import annotations

import signal
import threading

import pytest

from fastloop.core.stall_limit import Stalled, limit_stalls, note_progress


def remaining_s() -> float:
    return signal.getitimer(signal.ITIMER_REAL)[0]


def test_work_without_progress_is_stopped_even_if_it_catches_exceptions():
    def work() -> None:
        try:
            threading.Event().wait()
        except Exception:  # as a user's code that tries again
            work()

    with pytest.raises(Stalled, match=r"^no progress within 0.01 s: .*:\d+$"), limit_stalls(0.01):
        work()
    assert remaining_s() == 0


def test_limit_that_is_shorter_than_any_work_ends_it():
    with pytest.raises(Stalled, match=r"^no progress within 1e-09 s: .*:\d+$"), limit_stalls(1e-9):
        threading.Event().wait()
    assert remaining_s() == 0


def test_progress_starts_the_time_anew():
    with limit_stalls(10_000):
        signal.setitimer(signal.ITIMER_REAL, 5_000, 10_000)
        note_progress()
        assert remaining_s() > 5_000
    note_progress()  # nothing without a limit
    assert remaining_s() == 0


def test_thread_has_no_limit():
    def work() -> None:
        with limit_stalls(10_000):
            seen.append(remaining_s())

    seen: list[float] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0]
