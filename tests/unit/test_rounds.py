"""Order of trials: every key once per round, and each key first equally often."""

from __future__ import annotations

from fastloop.core import time_limits
from fastloop.core.interleave import rounds
from fastloop.core.time_limits import within
from fastloop.sweep.run_rounds import rounds_cut


def test_rounds_hold_every_key_once_and_first_equally_often():
    orders = [keys for _, keys in rounds(dict.fromkeys("abcd", 8))]
    assert all(sorted(keys) == list("abcd") for keys in orders)
    assert [[keys[0] for keys in orders].count(key) for key in "abcd"] == [2, 2, 2, 2]


def test_rounds_vary_in_order_and_are_reproducible():
    orders = [tuple(keys) for _, keys in rounds(dict.fromkeys("abcd", 24))]
    assert len(set(orders)) > 8
    assert orders == [tuple(keys) for _, keys in rounds(dict.fromkeys("abcd", 24))]


def test_rounds_omit_a_key_that_has_no_trials_left():
    assert [(number, sorted(keys)) for number, keys in rounds({"a": 1, "b": 3})] == [
        (0, ["a", "b"]),
        (1, ["b"]),
        (2, ["b"]),
    ]


def test_rounds_without_interleaving_run_key_after_key():
    turns = list(rounds({"a": 2, "b": 1}, interleave=False))
    assert turns == [(0, ["a"]), (1, ["a"]), (0, ["b"])]


def test_rounds_end_after_so_many_seconds_but_not_before_the_first(monkeypatch):
    clock = iter(range(0, 10**12, 10**9))  # a second passes between two looks
    monkeypatch.setattr(time_limits, "now_ns", lambda: next(clock))
    assert list(within("abcd", 3)) == ["a", "b", "c"]
    assert list(within("abcd", 0.1)) == ["a"]
    assert list(within("abcd", None)) == list("abcd")


def test_fewest_rounds_may_take_twice_the_time(monkeypatch):
    clock = iter(range(0, 10**12, 10**9))  # a second passes between two looks
    monkeypatch.setattr(time_limits, "now_ns", lambda: next(clock))
    assert "".join(within("abcdefgh", 3, fewest=2)) == "abc"
    assert "".join(within("abcdefgh", 3, fewest=5)) == "abcde"
    assert "".join(within("abcdefgh", 3, fewest=8)) == "abcdef"
    assert "".join(within("abcdefgh", None, fewest=2)) == "abcdefgh"


def test_rounds_that_time_leaves_no_room_for_are_not_counted_as_left():
    assert rounds_cut(rounds_left=19, round_s=6, left_s=34) == 13
    assert rounds_cut(rounds_left=3, round_s=6, left_s=34) == 0
    assert rounds_cut(rounds_left=3, round_s=6, left_s=-1) == 3
