"""Ranks of simulated campaigns with known answers, and of arbitrary values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastloop.core.pair_tests import holm, pair_p_values, pairs, significant_pairs, trials_needed
from fastloop.core.pair_tests import welch_p_value as welch
from fastloop.core.ranking import Ranking, explain_no_ranks, rank_jobs

NOISES = ("lognormal", "drift", "heavy", "skewed", "modes", "rare mode", "noisy job")
anything = st.floats(min_value=0, max_value=1e12) | st.just(math.inf)


def campaigns(noise, count, jobs, trials):
    """Logarithms of seconds (campaign, job, round) of equally fast jobs.

    lognormal: 5 % noise. drift: in addition, +10 % over the rounds and a shock of 10 % that the
    jobs of a round share. heavy: t with 3 degrees of freedom, one trial in ten takes 30-50 %
    longer. skewed: exponential, 10 %. modes: half of the trials take 30 % longer, 1 % noise. rare
    mode: a fifth take twice as long. noisy job: 40 % noise in one job, 2 % in the others.
    """
    rng = np.random.default_rng([0, NOISES.index(noise), jobs, trials])
    shape = (count, jobs, trials)
    if noise == "heavy":
        spikes = rng.uniform(0.3, 0.5, shape) * (rng.random(shape) < 0.1)
        return 0.03 * rng.standard_t(3, shape) + np.log1p(spikes)
    if noise == "skewed":
        return rng.exponential(0.1, shape)
    normal = rng.standard_normal(shape)
    if noise == "modes":
        return 0.01 * normal + math.log(1.3) * (rng.random(shape) < 0.5)
    if noise == "rare mode":
        return 0.01 * normal + math.log(2) * (rng.random(shape) < 0.2)
    if noise == "noisy job":
        return np.where(np.arange(jobs)[:, None] == 0, 0.4, 0.02) * normal
    logs = 0.05 * normal
    if noise == "drift":
        logs += np.linspace(0, 0.1, trials) + 0.1 * rng.standard_normal((count, 1, trials))
    return logs


def share_with_a_difference(logs):
    """The share of campaigns in which any pair differs significantly and by 2 %."""
    first, second = pairs(logs.shape[1])
    medians = np.median(logs[:, second] - logs[:, first], axis=-1)
    return (significant_pairs(logs) & (np.abs(medians) >= math.log(1.02))).any(axis=-1).mean()


def name_jobs(rows):
    return {f"job{number}": row for number, row in enumerate(rows)}


@pytest.mark.heavy
@pytest.mark.parametrize("trials", [3, 4, 5, 20])
@pytest.mark.parametrize("jobs", [2, 5, 20])
@pytest.mark.parametrize("noise", NOISES[:-1])
def test_identical_jobs_are_told_apart_in_at_most_5_percent(noise, jobs, trials):
    assert share_with_a_difference(campaigns(noise, 20_000 // jobs, jobs, trials)) <= 0.05


@pytest.mark.parametrize("trials", [5, 20])
@pytest.mark.parametrize("jobs", [3, 5, 20])
def test_noisy_job_is_not_told_from_quiet_ones(jobs, trials):
    """From five trials on; below, one that is by chance steady and far from the others is."""
    assert share_with_a_difference(campaigns("noisy job", 20_000 // jobs, jobs, trials)) <= 0.05


def test_ranks_of_identical_jobs_follow_from_these_tests():
    logs = campaigns("modes", 200, 5, 5)
    ranks = [max(rank_jobs(name_jobs(np.exp(rows))).ranks.values()) for rows in logs]
    assert np.mean([rank > 1 for rank in ranks]) <= share_with_a_difference(logs)


def test_half_again_as_slow_is_told_with_three_trials_of_ten_jobs():
    """10 % noise; the one job that takes 1.5 times as long, in at least 95 % of campaigns."""
    logs = 0.1 * np.random.default_rng(0).standard_normal((5_000, 10, 3))
    logs[:, 9] += math.log(1.5)
    told = significant_pairs(logs)[:, pairs(10)[1] == 9].any(axis=-1)
    assert told.mean() >= 0.95
    ranks = [rank_jobs(name_jobs(np.exp(rows))).ranks["job9"] for rows in logs[:50]]
    assert [rank > 1 for rank in ranks] == told[:50].tolist()


def test_fivefold_difference_is_told_with_three_trials_of_eight_jobs():
    """Medians as measured, without and with workers, and 20 % noise."""
    medians = np.log([8.0, 7.2, 10.9, 8.4, 1.5, 1.4, 1.4, 1.5])
    noise = 0.2 * np.random.default_rng(0).standard_normal((50, 8, 3))
    for rows in np.exp(medians[:, None] + noise):
        ranking = rank_jobs(name_jobs(rows))
        for name in ("job0", "job1", "job2", "job3"):
            assert ranking.faster[name] >= {"job4", "job5", "job6", "job7"}


def test_ranking_decides_a_clear_case_with_five_trials():
    slowness = np.log([1, 1.2, 1, 2])[:, None]
    rankings = [
        rank_jobs(name_jobs(np.exp(slowness + 0.2 * logs))).ranks
        for logs in campaigns("drift", 100, 4, 5)
    ]
    right = {"job0": 1, "job2": 1, "job1": 3, "job3": 4}
    assert np.mean([ranks == right for ranks in rankings]) >= 0.9


def test_ranking_ties_differences_below_two_percent():
    base = [1 + step / 10 for step in range(20)]
    for factor, rank in ((1.019, 1), (1.021, 2)):
        ranking = rank_jobs({"slow": [factor * value for value in base], "fast": base})
        assert ranking.ranks == {"fast": 1, "slow": rank}
        assert ranking.order == ("fast", "slow")


def test_rank_counts_the_jobs_that_are_significantly_faster():
    """b can't be told from a, nor c from b, nor d from c, but c can from a, and d from a and b."""
    wave = np.array([1, -1, 1, -1, 1, -1, 1, -1])
    jobs = {"a": 1 + 0 * wave, "b": 1.015 + 0 * wave, "c": 1.03 + 0 * wave, "d": 1.04 + 0.01 * wave}
    ranking = rank_jobs(jobs)
    assert ranking.ranks == {"a": 1, "b": 1, "c": 2, "d": 3}
    assert ranking.faster == {"a": set(), "b": set(), "c": {"a"}, "d": {"a", "b"}}


def test_noisy_job_of_lowest_median_hides_no_difference():
    jobs = {
        "noisy": [1, 1, 1, 9, 9.5],
        "steady": [1.2, 1.21, 1.19, 1.2, 1.22],
        "slow": [5, 5.1, 4.9, 5.05, 4.95],
    }
    assert rank_jobs(jobs).ranks == {"noisy": 1, "steady": 1, "slow": 2}


def test_rank_counts_jobs_that_are_faster_through_another():
    """Told apart: steady from slow, slow from slowest; noisy from none but slowest."""
    jobs = {
        "noisy": [1, 1, 1, 9, 9.5],
        "steady": [1.2, 1.21, 1.19, 1.2, 1.22],
        "slow": [5, 5.1, 4.9, 5.05, 4.95],
        "slowest": [11, 11.1, 10.9, 11.05, 10.95],
    }
    ranks = rank_jobs(jobs).ranks
    assert (ranks["noisy"], ranks["steady"], ranks["slow"]) == (1, 1, 2)
    assert ranks["slowest"] in (3, 4)


def test_ranks_do_not_depend_on_what_rounds_share():
    base = [10.0**step for step in range(5)]
    assert rank_jobs({"new": [1.05 * value for value in base], "base": base}).ranks["new"] == 2


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (
            {"a": [1.0], "b": [2.0]},
            "one trial of each shows no noise, so no difference is proven; trials=3 or more",
        ),
        (
            {"a": [1.0, 1.8], "b": [6.8, 7.0]},
            "2 trials; about 3 of each would tell the difference seen (5.14 times) apart",
        ),
        ({"a": [1.0, 1.1], "b": [1.1, 1.0]}, "2 trials; about 189 of each would tell a differen"),
        ({"a": [1.0, 1.0, 1.0], "b": [1.0]}, "1 to 3 trials per job; run the same number of each"),
        ({"a": [2.0] * 4, "b": [1.0] * 5}, "4 to 5 trials per job; about 5 of each would tell"),
        ({"a": [1.0] * 5, "b": []}, "0 to 5 trials per job; run the same number of each"),
        ({"a": [1.0] * 5, "b": [0.0] * 5}, "a trial's time is not a positive number"),
        ({"a": [1.0] * 5, "b": [math.nan] * 5}, "a trial's time is not a positive number"),
    ],
)
def test_ranking_says_why_it_is_undetermined_and_trials_needed(seconds, message):
    ranking = rank_jobs(seconds)
    assert ranking.ranks == {}
    assert sorted(ranking.order) == ["a", "b"]
    assert ranking.undetermined.startswith(message)


def test_tie_says_how_many_trials_would_tell_the_difference_seen():
    ranking = rank_jobs({"a": [1.0, 1.4, 1.0], "b": [1.3, 1.2, 1.5], "c": [9.0, 9.1, 9.2]})
    assert ranking.ranks == {"a": 1, "b": 1, "c": 3}
    assert ranking.needed.endswith("of each would tell the difference seen (1.3 times) apart")
    assert rank_jobs({"a": [1.0] * 3, "b": [2.0] * 3}).needed == ""


def test_ranking_of_fewer_than_two_jobs():
    nothing = Ranking(ranks={}, undetermined="", needed="", order=())
    assert rank_jobs({}).ranks == nothing.ranks
    assert rank_jobs({}).undetermined == ""
    assert rank_jobs({"a": [1.0]}).ranks == {"a": 1}
    assert rank_jobs({"a": []}).undetermined.startswith("0 trials")


def test_command_whose_trials_give_no_ranks_is_told_so():
    assert explain_no_ranks([2] * 8).startswith("trials=2: no ranks")
    assert "8 jobs are ranked from trials=3 on" in explain_no_ranks([2] * 8)
    assert [explain_no_ranks(trials) for trials in ([1], [3, 3], [20] * 5)] == [""] * 3


def test_trials_needed_make_the_effect_just_significant():
    noise = np.random.default_rng(0).standard_normal((2, 20))
    logs = 0.05 * noise
    count = trials_needed(logs, math.log(1.02))
    spread = np.std(logs[1] - logs[0], ddof=1)
    for trials, significant in ((count, True), (count - 1, False)):
        wave = np.random.default_rng(1).standard_normal(trials)
        wave -= wave.mean()
        wave *= spread / np.std(wave, ddof=1)
        pair = np.stack([np.zeros(trials), wave + math.log(1.02)])
        assert significant_pairs(pair).tolist() == [significant]
    assert trials_needed(np.concatenate([logs, logs + 1]), math.log(1.02)) > count
    assert trials_needed(logs, math.log(1.1)) < count
    assert trials_needed(logs, 1e-9) == 10_000


def test_holm_rejects_until_one_fails():
    assert holm(np.array([0.001, 0.02, 0.5, 0.024]), 0.05).tolist() == [True, False, False, False]
    assert holm(np.array([0.04, 0.001, 0.02]), 0.05).tolist() == [True, True, True]
    assert holm(np.array([]), 0.05).tolist() == []


def test_p_values_are_those_of_the_t_tests_of_two_jobs():
    from scipy import stats

    new, base = np.random.default_rng(0).standard_normal((2, 6))
    assert pair_p_values(np.stack([base, new])) == pytest.approx(stats.ttest_rel(new, base).pvalue)
    assert welch(new, base) == pytest.approx(stats.ttest_ind(new, base, equal_var=False).pvalue)
    assert (welch(np.ones(5), np.ones(5)), welch(np.ones(5), np.zeros(5))) == (1, 0)


@given(st.dictionaries(st.text(max_size=3), st.lists(anything, max_size=7), max_size=6))
def test_ranking_of_any_times_gives_ranks_or_a_reason(seconds):
    ranking = rank_jobs(seconds)
    assert sorted(ranking.order) == sorted(seconds)
    assert bool(ranking.ranks) != bool(ranking.undetermined) or not seconds
    if ranking.ranks:
        assert tuple(ranking.ranks) == ranking.order
        # no job has more jobs before it than the table has above it
        assert all(1 <= rank <= place for place, rank in enumerate(ranking.ranks.values(), 1))


positive = st.floats(min_value=1e-9, max_value=1e9)


@given(st.integers(2, 5), st.integers(2, 7), st.data())
def test_p_values_of_any_times_are_probabilities(jobs, rounds, data):
    values = data.draw(st.lists(positive, min_size=jobs * rounds, max_size=jobs * rounds))
    p_values = pair_p_values(np.log(values).reshape(jobs, rounds))
    assert ((p_values >= 0) & (p_values <= 1)).all()


def test_ranks_of_extreme_values():
    jobs = {"huge": [1e308] * 5, "tiny": [5e-324] * 5}
    assert rank_jobs(jobs).ranks == {"tiny": 1, "huge": 2}
    assert rank_jobs(jobs | {"one": [1.0] * 5}).ranks == {"tiny": 1, "one": 2, "huge": 3}
