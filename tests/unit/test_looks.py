"""trials=auto: claims of simulated sweeps with repeated looks, and when a sweep ends."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from known_results import result_of

from experiments.auto_trials.run import MARGIN, false_claims, run_sweeps, sweeps
from fastloop.core import stats
from fastloop.core.auto_trials import (
    DIFFERENCES,
    LOOKS,
    TIES,
    most_trials,
    share_of_last_look,
    share_of_look,
)
from fastloop.core.pair_tests import pair_p_values
from fastloop.core.ranking import is_decided, rank_jobs
from fastloop.reporting.comparable import has_ranking


def named(rows):
    return {f"job{number}": list(row) for number, row in enumerate(rows)}


def test_shares_of_all_looks_are_the_whole_and_each_round_has_the_next_looks():
    assert sum(map(share_of_look, LOOKS)) == pytest.approx(1)
    assert DIFFERENCES + TIES <= 0.05
    assert [share_of_look(rounds) for rounds in (3, 7, 14)] == [*map(share_of_look, (4, 8, 16))]


@pytest.mark.parametrize("rounds", [4, 5, 6, 7, 11, 20])
def test_all_looks_spend_in_proportion_to_the_rounds_if_time_ends_them(rounds):
    spent = sum(share_of_look(look) for look in LOOKS if look < rounds)
    assert spent + share_of_last_look(rounds) == pytest.approx(rounds / 20)


def test_time_that_is_up_before_the_first_look_spends_no_more_than_that_look():
    assert share_of_last_look(3) == share_of_look(4)


@pytest.mark.parametrize("noise", ["lognormal", "one x5", "serial .6"])
def test_at_most_five_percent_of_sweeps_that_time_ends_tell_equal_jobs_apart(noise):
    for rounds in (4, 7):
        _, told, equal, _ = run_sweeps(noise, 200, 5, np.zeros(5), seed=11, last=rounds)
        assert (told != 0).any(axis=-1).mean() <= 0.05
        assert not equal.any()


def test_time_that_is_up_names_a_winner_that_one_more_look_would_not():
    """Five jobs, one of them 1.5 times as fast, with 5 % noise, after seven rounds."""
    rng = np.random.default_rng(5)
    logs = 0.05 * rng.standard_normal((5, 7)) + np.log([[1]] + 4 * [[1.5]])
    assert not is_decided(named(np.exp(logs)))
    assert rank_jobs(named(np.exp(logs)), in_looks=True).undecided == ()
    assert most_trials("auto") == LOOKS[-1]


def test_only_sweeps_with_jobs_that_may_be_ranked_together_wait_for_the_first_look():
    job = replace(result_of([], 1, 1.0), fingerprint="of digits")
    other = replace(job, name="another")
    assert has_ranking([job, other])
    assert not has_ranking([job])
    assert not has_ranking([job, replace(other, dataset="photos")])
    unverified = [replace(each, tags={"unverified": "true"}) for each in (job, other)]
    assert not has_ranking(unverified)


@pytest.mark.heavy
@pytest.mark.nightly
@pytest.mark.parametrize("jobs", [2, 5, 20])
@pytest.mark.parametrize(
    "noise",
    [
        "lognormal",
        "skewed",
        "heavy",
        "one x5",
        "half x10",
        "bursts",
        "serial .3",
        "serial .6",
    ],
)
def test_at_most_five_percent_of_sweeps_tell_equal_jobs_apart(noise, jobs):
    wrong, tie, _ = false_claims(noise, 1_000 if jobs < 20 else 100, jobs, np.zeros(jobs))
    assert wrong <= 0.05
    assert tie == 0


@pytest.mark.heavy
@pytest.mark.parametrize("noise", ["lognormal", "one x5", "bursts"])
def test_at_most_five_percent_of_sweeps_name_jobs_as_equal_that_differ_by_two_percent(noise):
    slowness = np.where(np.arange(5) == 0, 0, MARGIN)
    wrong, tie, _ = false_claims(noise, 300, 5, slowness)
    assert wrong + tie <= 0.05


def test_equal_quiet_jobs_end_as_a_tie_and_a_clear_winner_ends_at_the_first_look():
    rng = np.random.default_rng(0)
    seconds = named(np.exp(0.003 * rng.standard_normal((3, 20)) + np.log([[1], [1], [3]])))
    counts = [count for count in range(21) if is_decided(_first(seconds, count))]
    ranking = rank_jobs(_first(seconds, counts[0]), in_looks=True)
    assert counts[0] < 20
    assert {ranking.order[0], *ranking.equal} == {"job0", "job1"}
    assert ranking.undecided == ()
    apart = named(np.exp(0.01 * rng.standard_normal((2, 20)) + np.log([[1], [2]])))
    assert [is_decided(_first(apart, count)) for count in (3, 4)] == [False, True]


def test_undecided_jobs_are_named_and_twenty_rounds_end_a_sweep():
    rng = np.random.default_rng(0)
    seconds = named(np.exp(0.2 * rng.standard_normal((3, 20)) + np.log([[1], [1], [9]])))
    assert [count for count in range(21) if is_decided(_first(seconds, count))] == [20]
    ranking = rank_jobs(seconds, in_looks=True)
    assert {ranking.order[0], *ranking.undecided} == {"job0", "job1"}
    assert ranking.equal == ()


def test_a_single_job_ends_after_five_rounds():
    assert [count for count in range(7) if is_decided({"a": [1.0] * count})] == [5, 6]
    assert not is_decided({})


def test_intervals_hold_the_ratio_after_all_looks():
    """At least 95 % of sweeps that end as soon as they are decided."""
    logs = sweeps("lognormal", 400, 2, np.random.default_rng(1))
    ran = run_sweeps("lognormal", 400, 2, np.zeros(2), seed=1)[0]
    held = []
    for row, rounds in zip(logs, ran, strict=True):
        ratio = stats.ratio(*np.exp(row[:, :rounds]), look_share=share_of_look(rounds))
        held.append(ratio.low <= 1 <= ratio.high)
    assert np.mean(held) >= 0.95


def test_after_looks_intervals_are_wider_and_p_values_larger():
    new, base = [1.1, 1.2, 1.15, 1.3, 1.22], [1.0, 1.02, 1.1, 1.05, 0.97]
    alone, after_looks = stats.ratio(new, base), stats.ratio(new, base, look_share=share_of_look(5))
    assert after_looks.estimate == alone.estimate
    assert after_looks.low < alone.low < alone.high < after_looks.high
    assert after_looks.p_value > alone.p_value


def test_trials_that_follow_each_other_count_for_less():
    """Noise that wanders: a slow drift of one job looks like a difference, with few rounds."""
    wander = 0.02 * np.cumsum(np.random.default_rng(3).standard_normal((2, 20)), axis=1)
    wander[1] += math.log(1.05)
    independent, serial = (pair_p_values(wander, allows_serial=each)[0] for each in (False, True))
    assert serial > 2 * independent


def _first(seconds, count):
    return {name: values[:count] for name, values in seconds.items()}
