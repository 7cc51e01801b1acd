"""The first sentences of `fastloop compare`: what became slower, or that nothing is known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fastloop.core.stats import Ratio
from fastloop.reporting.comparison import CostChange
from fastloop.reporting.comparison_text import (
    comparison_answer,
    format_changes,
    other_differences,
)

FINISHED, FAILED = SimpleNamespace(status="FINISHED"), SimpleNamespace(status="FAILED")


def change(job: str, times: float, *, base_cost: float = 1e-5, known: bool = True) -> CostChange:
    ratio = Ratio(estimate=times, low=0.99 * times, high=1.01 * times, p_value=0.001)
    return CostChange(
        benchmark="training",
        job=job,
        base_cost=base_cost,
        new_cost=base_cost * times,
        ratio=ratio if known else None,
        is_significant=known and abs(times - 1) > 0.01,
    )


@pytest.mark.parametrize(
    ("changes", "answer"),
    [
        (
            [change("raw", 1.3), change("b", 1.0)],
            "raw has become slower: training takes 1.3 times as long as in the base "
            "(13 us a sample against 10 us; 95 %: 1.29 to 1.31).",
        ),
        (
            [change("raw", 1.3), change("b", 2.0)],
            "b has become slower: training takes 2 times as long as in the base "
            "(20 us a sample against 10 us; 95 %: 1.98 to 2.02). "
            "In all 2 of 2 comparisons are slower.",
        ),
        ([change("raw", 1.0)], "No job has become slower by more than 5 %."),
        (
            [change("a", 0.5), change("b", 0.5), change("c", 1.03)],
            "No job has become slower by more than 5 %: 2 of 3 are faster, "
            "1 of 3 is slower by less.",
        ),
        (
            [change("raw", 9.0, known=False)],
            "No answer yet: each set needs 5 trials of a job or more.",
        ),
        (
            [change("raw", 9.0, known=False), change("b", 1.0)],
            "No job has surely become slower by more than 5 %. "
            "1 of 2 is not judged: each set needs 5 trials or more.",
        ),
        ([], "No answer: no job has finished in both sets."),
    ],
)
def test_first_sentence_is_the_answer(changes, answer):
    pairs = {each.job: (FINISHED, FINISHED) for each in changes}
    assert comparison_answer(pairs, changes, 5) == answer


def test_regression_that_noise_may_hide_is_not_denied():
    ratio = Ratio(estimate=1.3, low=0.8, high=2.1, p_value=0.2)
    noisy = replace(change("raw", 1.3), ratio=ratio, is_significant=False)
    pairs = {"raw": (FINISHED, FINISHED), "b": (FINISHED, FINISHED)}
    assert comparison_answer(pairs, [noisy, change("b", 1.0)], 5) == (
        "No job has surely become slower by more than 5 %. "
        "1 of 2 may have: training of raw takes 0.8 to 2.1 times as long (95 %)."
    )


def test_job_that_no_longer_finishes_comes_first():
    pairs = {"raw": (FINISHED, FAILED), "b": (FINISHED, FINISHED)}
    text = comparison_answer(pairs, [change("b", 1.0)], 5)
    assert text == "raw no longer finishes."


def test_setting_that_only_ends_like_a_condition_is_a_difference():
    before, after = (
        SimpleNamespace(
            status="FINISHED",
            params={"loader.page_cache": n, "dataset.max_trials": n, "cache": n, "trials": n},
        )
        for n in (1, 2)
    )
    lines = other_differences({"raw": (before, after)}, {"raw": before}, {"raw": after})
    assert lines == ["differs: dataset.max_trials 1 -> 2", "differs: loader.page_cache 1 -> 2"]


def test_times_of_a_table_share_the_unit_that_fits_them():
    slow = format_changes([change("raw", 1.0, base_cost=0.02), change("b", 1.0, base_cost=0.5)], 5)
    assert "training, ms a sample" in slow
    assert "500" in slow
    assert "training, us a sample" in format_changes([change("raw", 1.0)], 5)
