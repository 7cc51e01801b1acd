"""The answer of `fastloop attach --try`, from changes that were tried in known rounds."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastloop.core.machine_counters import read_counters
from fastloop.core.spans import now_ns, pause
from fastloop.core.stats import Estimate
from fastloop.core.time_limits import deadline_after
from fastloop.explain.attach import try_rounds
from fastloop.explain.attach.changes_to_try import choose_changes
from fastloop.explain.attach.loop_what_ifs import LoopWhatIf
from fastloop.explain.attach.run_length import Budget, FirstRun, choose_more_batches
from fastloop.explain.attach.script_runner import AS_IS, HashedRun
from fastloop.explain.attach.tried_changes import TriedChange, TriedLoop
from fastloop.explain.attach.tried_text import format_tried
from fastloop.explain.attach.try_changes import try_changes
from fastloop.explain.attach.try_rounds import Attempt, Attempts, RunLimits
from fastloop.explain.change import Change

LOOP = "train.py:9"
FACTS = {"place": LOOP, "made_at": "/nowhere/train.py:1", "num_workers": 1, "type": "DataLoader"}
FACTS |= {"most_workers": None, "torch_threads": 1, "persistent_workers": False}
ONE = Change(settings={"num_workers": 0})


def tried_loop(*changes):
    return TriedLoop(
        place=LOOP,
        made_at="/nowhere/train.py:1",
        batches=40,
        seconds=10.0,
        changes=changes,
        minutes=0.9,
        least_minutes=1.0,
        is_out_of_time=True,
        best=None,
    )


def tried_change(gain=None, name="num_workers=1", **more):
    known = gain and Estimate(value=gain, low=gain - 0.1, high=gain + 0.1, is_interval=True)
    return TriedChange(change=name, predicted=None, gain=known, rounds=3, **more)


@pytest.mark.parametrize(
    ("gain", "shown"), [(-0.002, "as long as"), (-0.17, "takes 1.17 [1.07, 1.27] times as long")]
)
def test_change_without_an_effect_is_not_said_to_take_one_times_as_long(gain, shown):
    text = format_tried(tried_loop(tried_change(gain)), None)
    assert shown in text
    assert " 1 times" not in text


@pytest.mark.parametrize(
    ("others", "is_told"),
    [
        ([], False),
        ([tried_change(failure="it ended")], False),
        ([tried_change()], True),
        ([tried_change(), tried_change(name="num_workers=4")], True),
    ],
)
def test_no_change_helps_only_if_all_were_run(others, is_told):
    """Changes for which there was no time may help."""
    answer = " ".join(format_tried(tried_loop(tried_change(-0.17), *others), None).split())
    assert answer.startswith("No change helps") is not is_told
    assert ("--minutes=2.3" in answer) is is_told


def test_gain_of_a_single_round_has_no_bounds():
    known = Estimate(value=0.068, low=0.068, high=0.068, is_interval=False)
    change = TriedChange(change="num_workers=1", predicted=None, gain=known, rounds=1)
    text = " ".join(format_tried(tried_loop(change), None).split())
    assert "num_workers=1 saves 6.8 % in 1 of" in text
    assert text.endswith("saves 6.8 % in 1 round")


@pytest.mark.parametrize(
    ("low", "high", "is_told"),
    [(-0.1, 0.2, True), (-0.51, 0.84, False), (-0.8, 0.71, False), (-67.0, 0.71, False)],
)
def test_interval_that_says_nothing_is_not_shown(low, high, is_told):
    """As on a machine that has much other work in one of three rounds."""
    known = Estimate(value=0.07, low=low, high=high, is_interval=True)
    change = TriedChange(change="num_workers=1", predicted=None, gain=known, rounds=3)
    text = " ".join(format_tried(tried_loop(change), None).split())
    assert text.startswith("No change helps" if is_told else "No answer yet")
    assert ("7.0 %" in text) is is_told
    assert text.count("differs too much") == (0 if is_told else 2)


def test_change_that_was_dropped_for_a_bad_round_is_not_promised_by_more_minutes():
    """There was time left: more of it would not have run the change again."""
    known = Estimate(value=0.3, low=-2.5, high=0.94, is_interval=False)
    change = TriedChange(change="num_workers=1", predicted=None, gain=known, rounds=2)
    tried = replace(tried_loop(change), is_out_of_time=False)
    text = " ".join(format_tried(tried, None).split())
    assert text.startswith("No answer yet")
    assert "a quieter machine" in text
    assert "--minutes" not in text


@pytest.mark.parametrize(
    ("low", "high", "saving"),
    [(0.59, 0.9995, "saves at least 59 %"), (-29.0, -0.5, "takes at least 1.5 times as long")],
)
def test_wide_interval_tells_its_end_nearest_to_now(low, high, saving):
    """A change that certainly saves time was recommended without a figure."""
    value = 0.67 if low > 0 else -1.0
    known = Estimate(value=value, low=low, high=high, is_interval=True)
    change = TriedChange(change="num_workers=1", predicted=None, gain=known, rounds=4)
    best = change.change if low > 0 else None
    text = " ".join(format_tried(replace(tried_loop(change), best=best), None).split())
    assert text.count(saving) == 2


def shown(*changes, **more):
    """The answer in one line."""
    return " ".join(format_tried(replace(tried_loop(*changes), **more), None).split())


@pytest.mark.parametrize(
    ("least", "given", "named"), [(1.5, 1.0, "--minutes=1.5"), (1.5, 2.0, "--minutes=4.0")]
)
def test_minutes_that_are_named_are_more_than_those_that_were_given(least, given, named):
    known = Estimate(value=0.3, low=0.2, high=0.4, is_interval=False)
    change = TriedChange(change="num_workers=2", predicted=None, gain=known, rounds=2)
    text = shown(change, least_minutes=least, minutes=given)
    assert text.startswith("No answer yet")
    assert f"{named} or more will tell" in text
    unclear = replace(change, gain=replace(known, low=-0.5, high=0.8))
    text = shown(unclear, least_minutes=least, minutes=given)
    assert f"or --minutes={2 * given:.1f}, may tell" in text


@pytest.mark.parametrize("is_clear", [True, False])
@pytest.mark.parametrize("is_out_of_time", [True, False])
def test_no_minutes_are_named_if_the_time_was_not_the_limit(is_clear, is_out_of_time):
    """Others were faster in the first rounds and had the later ones, or all rounds were over."""
    bounds = (0.2, 0.4) if is_clear else (-0.5, 0.8)
    known = Estimate(value=0.3, low=bounds[0], high=bounds[1], is_interval=False)
    change = TriedChange(change="num_workers=2", predicted=None, gain=known, rounds=2)
    later = tried_change(0.01, name="num_workers=4")
    others = [later] if is_out_of_time else []
    text = shown(change, *others, is_out_of_time=is_out_of_time)
    assert ("others had saved more" in text) is (is_clear and is_out_of_time)
    assert text.startswith("No answer yet")
    assert "a quieter machine may tell" in text
    assert "--minutes" not in text


@pytest.mark.parametrize("is_least", [True, False])
def test_prediction_that_is_a_lower_bound_is_called_one(is_least):
    known = Estimate(value=0.5, low=0.4, high=0.6, is_interval=True)
    change = TriedChange(
        change="fastloop.FastLoader", predicted=0.3, is_least=is_least, gain=known, rounds=3
    )
    text = shown(change, best=change.change)
    assert text.count("at least 30 %") == is_least
    assert text.count("30 %") == 1


@pytest.mark.parametrize(("seconds", "is_told"), [(0.34, True), (5.0, False)])
def test_short_runs_are_said_to_be_unlike_long_ones(seconds, is_told):
    text = shown(tried_change(0.3), best="num_workers=1", seconds=seconds)
    assert ("The loop takes only 340 ms in such a run" in text) is is_told


class ShortRunner:
    """A script whose batches take 20 ms in the first run, and runs of a known length."""

    def __init__(self, batches, run_s=0.0, *, once_s=2.0, hash_s=0.0):
        self.cut, self.run_s, self.runs = SimpleNamespace(batches=batches), run_s, []
        self.once_s, self.hash_s = once_s, hash_s
        self.notes = {}

    def run_hashed(self, change, limit_s):
        # The first batch takes two seconds with its step, unless a test says otherwise.
        later_s = 0.02 * (self.cut.batches - 1)
        seconds = self.once_s + later_s
        return HashedRun(digests=[1], seconds=seconds, once_s=self.once_s, hash_s=self.hash_s)

    def rerun_hashed(self, change, limit_s):
        return self.run_hashed(change, limit_s)

    def lengthen(self, batches):
        self.cut.batches = batches

    def seconds(self, change, limit_s):
        pause(self.run_s)
        self.runs.append((change.name, self.cut.batches))
        return 1.0


def found_loop(**more):
    """A loop of ten passes of 100 batches, which took a second each in the observed run."""
    usual = {"facts": FACTS, "ranks": None, "batches": 1000, "passes": 10, "seconds": 1000.0}
    usual |= {"loaders": 1, "what_ifs": (), "samples_wait": False, "shares": {}}
    return cast("Any", SimpleNamespace(**usual | {"load_cores": 1, "step_cores": 0.5} | more))


@pytest.mark.parametrize(
    ("later_s", "budget_s", "batches"),
    [
        (0.08, 600.0, 250),  # 20 ms each: five seconds
        (0.8, 600.0, 25),
        (4.0, 600.0, 5),  # a second each, as in the observed run
        (0.004, 600.0, 1000),  # no more than the loop had
        (0.08, 60.0, 150),  # three seconds at least
        (0.0, 600.0, 5),
    ],
)
def test_first_run_tells_how_many_batches_are_enough(later_s, budget_s, batches):
    first = FirstRun(batches=5, seconds=3.0 + later_s, later_s=later_s)
    assert choose_more_batches(found_loop(), first, Budget(budget_s)) == batches


@pytest.mark.parametrize(
    ("later_s", "left_s", "batches"),
    [
        (0.08, 36.0, 51),  # six runs of 6 s, or 4 s if they take half as long again: 1 s of loop
        (0.08, 27.0, 5),
        (0.08, 5.0, 5),
        (3.1, 600.0, 5),  # it takes LEAST_S already
    ],
)
def test_runs_are_not_lengthened_beyond_the_time_that_is_left(later_s, left_s, batches):
    """The floor of three seconds once took the time of the rounds, which were refused then."""
    first = FirstRun(batches=5, seconds=3.0 + later_s, later_s=later_s)
    assert choose_more_batches(found_loop(), first, Budget(left_s + first.seconds)) == batches


@pytest.mark.parametrize(("workers", "batches"), [(0, 250), (2, 42)])
def test_time_for_hashing_counts_for_the_length_if_there_are_workers(workers, batches):
    """Workers make batches meanwhile, so that those of 120 ms seem to take 20 ms."""
    runner = ShortRunner(5, hash_s=0.4)
    found = found_loop(facts=FACTS | {"num_workers": workers})
    tried = try_changes(cast("Any", runner), found, [ONE], Budget(600.0), lambda _: None)
    assert batches - 5 <= tried.batches <= batches


def test_long_run_is_not_said_to_be_too_short():
    runner, lines = ShortRunner(5, once_s=9.0), []
    try_changes(cast("Any", runner), found_loop(), [ONE], Budget(600.0), lines.append)
    assert lines[0].startswith("a run up to batch 5 is mostly its first batch: further ones end")


def test_runs_that_the_observed_one_made_too_short_are_lengthened():
    """It ran beside other programs, so that five batches seemed to be enough."""
    runner, found, lines = ShortRunner(5), found_loop(), []
    kept = Change(settings={"persistent_workers": True})
    assert kept not in choose_changes(found, 5)
    tried = try_changes(cast("Any", runner), found, [ONE], Budget(600.0), lines.append)
    assert 245 <= tried.batches <= 250
    assert {batches for _, batches in runner.runs} == {tried.batches}
    assert f"further ones end at {tried.batches}" in lines[0]
    assert kept.name in [each.change for each in tried.changes], "runs have several passes"


def test_time_that_ends_with_the_last_of_all_rounds_is_no_limit(monkeypatch):
    """More minutes would add no round."""
    monkeypatch.setattr(try_rounds, "MOST_ROUNDS", 1)
    attempts = Attempts(
        baseline=Attempt(change=AS_IS, run_s=0.0), changed=[Attempt(change=ONE, run_s=0.0)]
    )
    runner, deadline = cast("Any", ShortRunner(5, run_s=0.3)), deadline_after(0.2, now_ns())
    limits = RunLimits(budget=Budget(0.2), deadline=deadline, longest_s=60.0)
    end = try_rounds.run_rounds(runner, attempts, limits, lambda _: None)
    assert not end.is_out_of_time
    assert deadline.is_over


BURN = "while True: pass"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what others use")
def test_first_line_of_the_answer_says_that_the_machine_was_busy(monkeypatch):
    if not read_counters().total_s:
        pytest.skip("this system does not tell what others use")
    # Three rounds tell it, in less time than ten.
    monkeypatch.setattr(try_rounds, "MOST_ROUNDS", 3)
    # The shell ends, so that the busy process is no descendant of this one.
    command = f"{shlex.quote(sys.executable)} -S -c '{BURN}' >/dev/null 2>&1 & echo $!"
    busy = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    try:
        runner = ShortRunner(5, run_s=0.3)
        what_ifs = (LoopWhatIf(change=ONE, gain=0.1),)
        found = found_loop(batches=5, seconds=0.1, passes=1, what_ifs=what_ifs)
        tried = try_changes(cast("Any", runner), found, [ONE], Budget(600.0), lambda _: None)
    finally:
        os.kill(int(busy.stdout), signal.SIGKILL)
    assert tried.machine_load is not None
    assert tried.machine_load.stretches >= 3
    assert tried.machine_load.is_quiet is False
    text = format_tried(tried, None)
    assert text.startswith("The machine was busy: other processes used")
    assert "No change helps the loop at train.py:9" in text
