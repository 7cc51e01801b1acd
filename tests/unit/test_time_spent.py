"""The line after the table: how long a command took, and how much of that was timed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from known_results import result_of

from fastloop.sweep import time_spent
from fastloop.sweep.time_spent import ROUNDS, StageClock, describe_time, seconds_in_windows


def test_line_tells_the_timed_share_and_what_the_rest_was_for():
    results = [result_of([10.0, 4.0], 1, 1.0), result_of([13.0], 1, 1.0)]
    stages = {"start": 5.2, "preparing the data": 0.3, ROUNDS: 50.0, "instrumented passes": 6.5}
    assert describe_time(results, stages) == (
        "of 1 min 2 s, 27 s were timed; the rest: 23 s processes, warm-ups, limits and comparing "
        "data around them, 6 s instrumented passes, 5 s start"
    )


def test_only_windows_of_this_command_count():
    resumed, kept = result_of([10.0, 4.0], 1, 1.0), result_of([20.0], 1, 1.0)
    earlier, later = resumed.trials
    trials = [replace(earlier, session_ms=1), replace(later, session_ms=2)]
    resumed = replace(resumed, trials=trials)
    assert seconds_in_windows(resumed, 2) == pytest.approx(4.0)
    # The other job has kept the trials of the earlier session.
    kept = replace(kept, trials=[replace(kept.trials[0], session_ms=1)])
    assert describe_time([resumed, kept], {ROUNDS: 30.0}).startswith("of 30 s, 4 s were timed")
    assert describe_time([kept], {"start": 5.0}).startswith("of 5 s, 0 s were timed")


def test_stages_follow_each_other_from_the_start_of_the_process(monkeypatch):
    clock_s = [100.0]
    monkeypatch.setattr(time_spent, "now_ns", lambda: int(1e9 * clock_s[0]))
    monkeypatch.setattr(time_spent, "process_begun_ns", lambda: int(98e9))
    monkeypatch.setattr(StageClock, "_is_first", True)
    clock = StageClock()
    clock_s[0] = 103.0
    clock.end("one")
    clock_s[0] = 103.5
    clock.end("two")
    assert clock.stages() == pytest.approx({"start": 2.0, "one": 3.0, "two": 0.5})
    second = StageClock()
    clock_s[0] = 104.5
    second.end("one")
    assert second.stages() == pytest.approx({"start": 0.0, "one": 1.0}), "a sweep after the first"
