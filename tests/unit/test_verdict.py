"""The verdict's sentences and the changes of `compare`, of results with known seconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from known_results import result_of

from fastloop.reporting.comparison import find_changes
from fastloop.reporting.summary import summarize
from fastloop.reporting.tables import ranking_table
from fastloop.reporting.verdict import verdict
from fastloop.sweep.in_process import _summarize


def finished(seconds: dict[str, list[float]]):
    return [
        replace(
            result_of(values, samples=100, limit=100.0),
            name=f"{name} x",
            loader=name,
            status="FINISHED",
            tags={"device": "cpu"},
        )
        for name, values in seconds.items()
    ]


def comparison_of(seconds, baseline=""):
    (group,) = summarize(finished(seconds), baseline)
    return group.comparisons[0]


def text_of(seconds, baseline=""):
    return verdict(comparison_of(seconds, baseline))


FAST, SLOW = [1.0, 1.1, 0.9], [6.0, 6.3, 6.1]


def test_three_trials_tell_a_sixfold_difference_apart():
    text = text_of({"slow": SLOW, "fast": FAST, "other": [6.1, 6.0, 6.4]})
    assert text.startswith("fast is fastest, with 1 s a trial (95 % interval ")
    assert "Compared with the baseline slow, it is 6 times as fast (95 % interval " in text


def test_ratio_of_two_trials_is_given_and_not_proven():
    text = text_of({"fast": FAST[:2], "slow": SLOW[:2]})
    assert text.startswith("Undetermined: 2 trials; about 3 of each would tell the difference seen")
    assert "(5.86 times) apart. The medians, which prove no order: fast 1.05 s, slow" in text
    assert text.endswith(
        "slow takes 5.86 times the time of fast (5.73 to 6 in its rounds), not proven."
    )
    (one,) = {text_of({"fast": [1.0], "slow": [2.0]})}
    assert one.endswith("slow takes 2 times the time of fast (in one round), not proven.")


def test_tie_gives_the_ratio_what_would_tell_it_and_who_is_behind():
    text = text_of({"a": [1.0, 1.4, 1.0], "b": [1.3, 1.2, 1.5], "c": [9.0, 9.1, 9.2]}, "c")
    assert text.startswith("No winner: these trials can't tell a and b apart.")
    assert "b takes 1.3 times the time of a (95 % interval " in text
    assert "not proven; about 8 of each would tell the difference seen (1.3 times) apart." in text
    assert "c takes 9 times the time of a (95 % interval " in text
    assert "Compared with the baseline c, a is 9 times as fast (95 % interval " in text


def test_report_marks_the_range_of_two_rounds():
    table = ranking_table(comparison_of({"fast": FAST[:2], "slow": SLOW[:2]}))
    cells = dict(zip(table.head, table.rows[1], strict=True))
    assert cells["time / fast"] == "5.862"
    assert cells["ratio's 95 %"] == "range 5.727\u20136.000"


def test_bench_all_prints_ratios_of_two_trials_as_unproven():
    bench = _summarize({"fast": FAST[:2], "slow": SLOW[:2]}, [], 10)
    assert "x 5.862 (5.727, 6.000)" in str(bench)
    assert "(lowest, highest), which prove nothing" in " ".join(str(bench).split())
    tie = str(_summarize({"a": [1.0, 1.4, 1.0], "b": [1.3, 1.2, 1.5]}, [], 10))
    assert "sharing rank 1: about " in tie
    assert max(map(len, str(bench).splitlines() + tie.splitlines())) <= 80


def test_equal_sets_of_20_jobs_rarely_have_a_change():
    """Without a correction, a third of such comparisons have a job that is slower."""
    alarms = 0
    for seed in range(15):
        base, new = np.exp(0.05 * np.random.default_rng(seed).standard_normal((2, 20, 5)))
        before, after = (
            finished({f"job{number}": row.tolist() for number, row in enumerate(rows)})
            for rows in (base, new)
        )
        pairs = {one.name: (one, other) for one, other in zip(before, after, strict=True)}
        alarms += any(change.is_regression(0) for change in find_changes(pairs))
    assert alarms <= 1  # at most one is expected; 4 or 5 without the correction


def test_doubled_time_of_one_of_20_jobs_is_a_regression():
    base, new = np.exp(0.05 * np.random.default_rng(0).standard_normal((2, 20, 5)))
    new[7] *= 2
    before, after = (
        finished({f"job{number}": row.tolist() for number, row in enumerate(rows)})
        for rows in (base, new)
    )
    pairs = {one.name: (one, other) for one, other in zip(before, after, strict=True)}
    changes = find_changes(pairs)
    assert [change.job for change in changes if change.is_regression(5)] == ["job7 x"]
