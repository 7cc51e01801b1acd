"""The verdict's sentences and the changes of `compare`, of results with known seconds."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from known_results import result_of

from fastloop.core.result import Shadow, Shuffling
from fastloop.reporting.comparison import find_changes
from fastloop.reporting.outcome_sentences import shuffling_sentence, verdict
from fastloop.reporting.report_tables import ranking_table
from fastloop.reporting.summary import summarize
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


def test_first_sentence_is_the_winner_with_its_lead_both_times_and_the_interval():
    text = text_of({"slow": SLOW, "fast": FAST, "other": [6.1, 6.0, 6.4]})
    assert text.startswith("fast is fastest: 6 times slow (1 s against 6.1 s; 95 %: ")
    small = {name: [each / 1000 for each in values] for name, values in (("a", FAST), ("b", SLOW))}
    assert text_of(small, "b").startswith("a is fastest: 6 times b (1 ms against 6.1 ms; ")
    assert text_of(small, "a").startswith("a is fastest: 6 times b (1 ms against 6.1 ms; ")


def test_interval_that_spans_a_factor_of_ten_is_left_out():
    text = text_of({"slow": [100.0, 900.0, 300.0, 2000.0, 60.0], "fast": [1.0, 1.1, 0.9, 1, 1]})
    assert text.startswith("fast is fastest: 333 times slow (1 s against 300 s). ")
    wide = comparison_of({"a": [1.0, 40.0, 3.0]})
    assert "95 %" not in verdict(wide)
    assert "95 %, s" not in ranking_table(wide).head


def test_two_trials_give_no_ranking_and_the_medians():
    text = text_of({"fast": FAST[:2], "slow": SLOW[:2]})
    assert text.startswith("No ranking yet: 2 trials; about 3 of each would tell the difference")
    assert "The lowest median is fast's, 1.05 s, the highest slow's, 6.15 s." in text


def test_tie_of_the_jobs_that_shuffle_most_has_no_fastest_one():
    uniform = Shuffling(
        each_sample_once=True, new_order_each_epoch=True, distance=1.0, neighbours_kept=0.0
    )
    stored = replace(uniform, distance=0.1, neighbours_kept=0.9)

    def sentence(**seconds: list[float]) -> str:
        results = [
            replace(
                each,
                num_samples=1797,
                shadow=Shadow(
                    number=0, epochs=2, shuffling=stored if each.loader == "tar" else uniform
                ),
            )
            for each in finished(seconds)
        ]
        (group,) = summarize(results)
        return shuffling_sentence(group.comparisons[0])

    tied = sentence(tar=FAST, a=[6.0, 6.3, 6.1], b=[6.1, 6.0, 6.3])
    assert tied.endswith(" less; of the jobs that shuffle most, a has the lowest median.")
    told = sentence(tar=FAST, a=SLOW, b=[30.0, 31.0, 30.5])
    assert told.endswith(" less; of the jobs that shuffle most, a is fastest.")


def test_tie_that_is_not_proven_says_what_would_tell_it():
    text = text_of({"a": [1.0, 1.4, 1.0], "b": [1.3, 1.2, 1.5], "c": [9.0, 9.1, 9.2]}, "c")
    hint = "about 8 trials would; trials=auto goes on until they are"
    assert text.startswith(f"a and b can't be told apart yet ({hint}). ")
    assert "Both are 6.9 to 9 times c (1 to 1.3 s against 9.1 s)." in text


def quiet(seconds: float, trials: int = 8, seed: int = 0):
    noise = np.random.default_rng([seed, int(1e6 * seconds)]).standard_normal(trials)
    return list(seconds * np.exp(0.002 * noise))


def test_tie_that_is_proven_is_named_as_one():
    jobs = {"raw": quiet(0.106), "a": quiet(0.0088), "b": quiet(0.0088, seed=1)}
    (first,) = {text_of(jobs).partition(". ")[0]}
    assert "a and b are equally fast (within 2 %), both 12 times raw (8.79 to " in first
    assert " ms against 106 ms)" in first
    among = text_of({"a": jobs["a"], "b": jobs["b"]}).partition(". ")[0]
    assert among.endswith(" ms a trial")


@pytest.mark.parametrize("baseline", ["c", ""])
def test_speeds_of_a_tie_that_is_not_proven_are_a_sentence_with_a_verb(baseline):
    times = {"a": [1.0, 1.4, 1.0], "b": [1.3, 1.2, 1.5], "c": [9.0, 9.1, 9.2]}
    comparison = comparison_of(times, baseline)
    # A job outside of the tie may be as fast as the first job, as ratios are medians over rounds.
    text = verdict(replace(comparison, equal=("c",)))
    assert text == verdict(comparison)
    assert ("Both are 6.9 to 9 times c (" if baseline else "Both take 1 to 1.3 s a trial.") in text


def test_loader_whose_jobs_tie_is_the_winner_and_the_tie_is_the_second_sentence():
    results = finished({"raw": quiet(0.1), "one": quiet(1e-3), "two": [1e-3, 2e-3] * 4})
    results[1:] = [
        replace(each, loader="fastloop", name=f"fastloop x batch_size={size}")
        for each, size in zip(results[1:], (32, 128), strict=True)
    ]
    (group,) = summarize(results)
    first, second, *_ = verdict(group.comparisons[0]).split(". ")
    assert first.startswith("fastloop is fastest: ")
    assert " times raw (" in first
    assert second.startswith("Its batch 32 and batch 128 can't be told apart yet (")


def test_after_trials_auto_no_verdict_proposes_it():
    results = finished({"a": [1.0, 1.4] * 10, "b": [1.3, 1.2] * 10})
    auto = [replace(each, params={"trials": "auto"}) for each in results]
    (group,) = summarize(auto)
    assert "can't be told apart yet (after 20 trials" in verdict(group.comparisons[0])
    assert "trials=auto" not in verdict(group.comparisons[0])


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("spread", [0.001, 0.3])
@pytest.mark.parametrize("trials", [1, 2, 3, 6])
def test_verdict_has_at_most_three_sentences(count, spread, trials):
    noise = np.random.default_rng(0).standard_normal((count, trials))
    jobs = {f"job{number}": [*np.exp(spread * row)] for number, row in enumerate(noise)}
    text = text_of(jobs)
    assert 1 <= len(re.findall(r"\.( |$)", text)) <= 3
    assert text.endswith(".")


def test_report_marks_the_range_of_two_rounds():
    table = ranking_table(comparison_of({"fast": FAST[:2], "slow": SLOW[:2]}))
    cells = dict(zip(table.head, table.rows[1], strict=True))
    assert cells["time / fast"] == "5.862"
    assert cells["ratio's 95 %"] == "range 5.727\u20136.000"


def test_bench_all_prints_ratios_of_two_trials_as_unproven():
    bench = _summarize({"fast": FAST[:2], "slow": SLOW[:2]}, [], 10, None, epochs=1, in_looks=False)
    assert "x 5.862 (5.727, 6.000)" in str(bench)
    assert "(lowest, highest), which prove nothing" in " ".join(str(bench).split())
    tie = str(
        _summarize(
            {"a": [1.0, 1.4, 1.0], "b": [1.3, 1.2, 1.5]}, [], 10, None, epochs=1, in_looks=False
        )
    )
    assert "sharing rank 1: about " in tie
    assert max(map(len, str(bench).splitlines() + tie.splitlines())) <= 80


@pytest.mark.heavy
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
