"""Statistics of simulated campaigns with known ratios, and of arbitrary values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastloop.core import stats
from fastloop.sweep.caveats import loss_caveats, machine_caveats, trial_caveats, wait_caveats

CAMPAIGNS = 1_000
KINDS = ("lognormal", "drift", "heavy")

anything = st.floats(min_value=0, max_value=1e12) | st.just(math.inf)
positive = st.floats(min_value=1e-9, max_value=1e9)
pairs = st.lists(st.tuples(positive, positive), min_size=5, max_size=25)


def campaigns(kind, jobs, trials, seed=0):
    """Seconds (campaign, job, round) of equally fast jobs.

    lognormal: 5 % noise. drift: in addition, +10 % over the rounds and a shock of 10 % that the
    jobs of a round share. heavy: noise from a t distribution with 3 degrees of freedom, and one
    trial in ten takes 30-50 % longer.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), jobs, trials])
    shape = (CAMPAIGNS, jobs, trials)
    if kind == "heavy":
        spikes = rng.uniform(0.3, 0.5, shape) * (rng.random(shape) < 0.1)
        return np.exp(0.03 * rng.standard_t(3, shape)) * (1 + spikes)
    logs = 0.05 * rng.standard_normal(shape)
    if kind == "drift":
        logs += np.linspace(0, 0.1, trials) + 0.1 * rng.standard_normal((CAMPAIGNS, 1, trials))
    return np.exp(logs)


def name_jobs(rows):
    return {f"job{number}": row for number, row in enumerate(rows)}


@pytest.mark.heavy
@pytest.mark.parametrize("trials", [5, 10, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_ratio_interval_covers_the_truth(kind, trials):
    ratios = [stats.ratio(1.25 * new, base) for new, base in campaigns(kind, 2, trials)]
    assert 0.93 <= np.mean([ratio.low <= 1.25 <= ratio.high for ratio in ratios]) <= 0.97


@pytest.mark.parametrize("trials", [5, 7, 20])
@pytest.mark.parametrize("kind", ["lognormal", "heavy"])
def test_median_interval_covers_the_truth(kind, trials):
    truth = np.median(campaigns(kind, 10, 100, seed=1))
    intervals = [stats.interval(job) for (job,) in campaigns(kind, 1, trials)]
    assert 0.93 <= np.mean([low <= truth <= high for low, high in intervals]) <= 0.97


@pytest.mark.parametrize("jobs", [2, 5])
@pytest.mark.parametrize("trials", [5, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_ranking_gives_identical_loaders_one_rank(kind, trials, jobs):
    """Any pair with different ranks counts; the noise is far larger than the threshold of 2 %."""
    rankings = [stats.ranking(name_jobs(rows)).ranks for rows in campaigns(kind, jobs, trials)]
    assert np.mean([max(ranks.values()) > 1 for ranks in rankings]) <= 0.05


def test_ranking_decides_a_clear_case_with_five_trials():
    slowness = np.array([1, 1.2, 1, 2])[:, None]
    rankings = [
        stats.ranking(name_jobs(slowness * jobs**0.2)).ranks
        for jobs in campaigns("drift", 4, 5)[:300]
    ]
    right = {"job0": 1, "job2": 1, "job1": 3, "job3": 4}
    assert np.mean([ranks == right for ranks in rankings]) >= 0.9


def test_ranking_ties_differences_below_two_percent():
    base = [1 + step / 10 for step in range(20)]
    for factor, rank in ((1.019, 1), (1.021, 2)):
        ranking = stats.ranking({"slow": [factor * value for value in base], "fast": base})
        assert ranking.ranks == {"fast": 1, "slow": rank}
        assert ranking.order == ("fast", "slow")


def test_rank_counts_the_jobs_that_are_significantly_faster():
    """b can't be told from a, nor c from b, nor d from c, but c can from a, and d from a and b."""
    wave = np.array([1, -1, 1, -1, 1, -1, 1, -1])
    jobs = {"a": 1 + 0 * wave, "b": 1.015 + 0 * wave, "c": 1.03 + 0 * wave, "d": 1.04 + 0.01 * wave}
    assert stats.ranking(jobs).ranks == {"a": 1, "b": 1, "c": 2, "d": 3}


def test_noisy_job_of_lowest_median_hides_no_difference():
    jobs = {
        "noisy": [1, 1, 1, 9, 9.5],
        "steady": [1.2, 1.21, 1.19, 1.2, 1.22],
        "slow": [5, 5.1, 4.9, 5.05, 4.95],
    }
    assert stats.ranking(jobs).ranks == {"noisy": 1, "steady": 1, "slow": 2}


def test_rank_counts_jobs_that_are_faster_through_another():
    """Told apart: steady from slow, slow from slowest; noisy from none but slowest."""
    jobs = {
        "noisy": [1, 1, 1, 9, 9.5],
        "steady": [1.2, 1.21, 1.19, 1.2, 1.22],
        "slow": [5, 5.1, 4.9, 5.05, 4.95],
        "slowest": [11, 11.1, 10.9, 11.05, 10.95],
    }
    ranks = stats.ranking(jobs).ranks
    assert (ranks["noisy"], ranks["steady"], ranks["slow"]) == (1, 1, 2)
    assert ranks["slowest"] in (3, 4)


def test_ratio_pairs_the_jobs_of_a_round():
    """Each round is ten times the one before; the 5 % between the jobs still show."""
    base = [10.0**step for step in range(5)]
    ratio = stats.ratio([1.05 * value for value in base], base)
    assert (ratio.low, ratio.estimate, ratio.high) == pytest.approx((1.05, 1.05, 1.05))
    assert stats.ranking({"new": [1.05 * value for value in base], "base": base}).ranks["new"] == 2


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        ({"a": [1.0], "b": [2.0]}, "1 trial; run the same number of each, 5 or more"),
        (
            {"a": [1.0, 1.1], "b": [2.0, 2.0]},
            "2 trials; about 50 of each would show a difference of 2 %",
        ),
        ({"a": [1.0, 1.0, 1.0], "b": [1.0]}, "1 to 3 trials per job; run the same number of each"),
        ({"a": [2.0] * 4, "b": [1.0] * 5}, "4 to 5 trials per job; about 5 of each would show"),
        ({"a": [1.0] * 5, "b": []}, "0 to 5 trials per job; run the same number of each"),
        ({"a": [1.0] * 5, "b": [0.0] * 5}, "a trial's time is not a positive number"),
        ({"a": [1.0] * 5, "b": [math.nan] * 5}, "a trial's time is not a positive number"),
    ],
)
def test_ranking_says_why_it_is_undetermined_and_trials_needed(seconds, message):
    ranking = stats.ranking(seconds)
    assert ranking.ranks == {}
    assert sorted(ranking.order) == ["a", "b"]
    assert ranking.undetermined.startswith(message)


def test_ranking_of_fewer_than_two_jobs():
    assert stats.ranking({}) == stats.Ranking(ranks={}, undetermined="", order=())
    assert stats.ranking({"a": [1.0]}).ranks == {"a": 1}
    assert stats.ranking({"a": []}).undetermined.startswith("0 trials")


def test_trials_needed_make_the_effect_just_significant():
    rng = np.random.default_rng(0)
    base, new = np.exp(0.05 * rng.standard_normal((2, 20)))
    count = stats.trials_needed(new, base)
    spread = np.std(np.log(new / base), ddof=1)
    for trials, significant in ((count, True), (count - 1, False)):
        noise = np.random.default_rng(1).standard_normal(trials)
        noise -= noise.mean()
        noise *= spread / np.std(noise, ddof=1)
        ratio = stats.ratio(np.exp(noise + math.log(1.02)), np.ones(trials))
        assert (ratio.p_value < stats.SIGNIFICANCE) == significant
    assert stats.trials_needed(new, base, comparisons=10) > count
    assert stats.trials_needed(new, base, effect=0.1) < count
    assert stats.trials_needed(base, base) == stats.FEWEST_FOR_RANKING
    assert stats.trials_needed([1.0], [1.0]) is None


@given(pairs)
def test_ratio_of_swapped_jobs_is_the_inverse(rows):
    new, base = zip(*rows, strict=True)
    ratio, inverse = stats.ratio(new, base), stats.ratio(base, new)
    assert ratio.low <= ratio.estimate <= ratio.high
    assert inverse.estimate == pytest.approx(1 / ratio.estimate)
    assert inverse.p_value == pytest.approx(ratio.p_value)
    assert 0 <= ratio.p_value <= 1


@given(pairs, st.floats(min_value=1e-3, max_value=1e3))
def test_ratio_does_not_depend_on_the_unit_of_time(rows, unit):
    new, base = zip(*rows, strict=True)
    ratio = stats.ratio(new, base)
    scaled = stats.ratio([unit * value for value in new], [unit * value for value in base])
    assert (scaled.low, scaled.high) == pytest.approx((ratio.low, ratio.high))


@given(st.dictionaries(st.text(max_size=3), st.lists(anything, max_size=7), max_size=6))
def test_ranking_of_any_times_gives_ranks_or_a_reason(seconds):
    ranking = stats.ranking(seconds)
    assert sorted(ranking.order) == sorted(seconds)
    assert bool(ranking.ranks) != bool(ranking.undetermined) or not seconds
    if ranking.ranks:
        assert tuple(ranking.ranks) == ranking.order
        # no job has more jobs before it than the table has above it
        assert all(1 <= rank <= place for place, rank in enumerate(ranking.ranks.values(), 1))


@given(st.lists(anything, max_size=12))
def test_interval_of_any_trials_includes_their_median_or_is_none(values):
    interval = stats.interval(values)
    assert (interval is None) == (
        len(values) < 5 or not all(0 < value < math.inf for value in values)
    )
    if interval:
        assert interval[0] <= np.median(values) * (1 + 1e-9)
        assert np.median(values) <= interval[1] * (1 + 1e-9)


@given(st.lists(anything, max_size=12), st.lists(anything, max_size=12))
def test_ratio_and_caveats_accept_any_values(new, base):
    ratio = stats.ratio(new, base)
    if (
        len(new) != len(base)
        or len(new) < 5
        or not all(0 < value < math.inf for value in new + base)
    ):
        assert ratio is None
    trial_caveats(seconds=new)
    wait_caveats(wait_s=new, num_workers=2)


def test_ratio_of_extreme_values_neither_warns_nor_fails():
    tiny, huge = [5e-324] * 5, [1e308] * 5
    assert stats.interval([1e300] * 4 + [1.7e308])[1] == math.inf
    assert stats.ratio(huge, tiny).estimate == math.inf
    assert stats.ratio(tiny, huge).estimate == 0
    assert stats.ratio(tiny, tiny) == stats.Ratio(estimate=1, low=1, high=1, p_value=1)
    assert stats.ranking({"huge": huge, "tiny": tiny}).ranks == {"tiny": 1, "huge": 2}


@pytest.mark.parametrize(
    ("seconds", "messages"),
    [
        ([1.0] * 5, []),
        ([1.0], []),
        ([0.0] * 5, []),
        ([1.0, 1.01, 0.99, 1.0, 1.01], []),
        ([1.0, 1.4, 0.7, 1.3, 0.8], ["unstable: std 29 % of mean"]),
        ([1.0, 1.02, 1.04, 1.06, 1.08], ["drift: +8 % over rounds"]),
        ([1.0, 0.98, 0.96, 0.94, 0.92], ["drift: -8 % over rounds"]),
        ([1.0, 1.01, 1.2, 1.0, 1.01, 1.0, 1.01, 1.0], ["1 outlier"]),
        ([1.0, 1.01, 1.2, 1.0, 1.01, 0.8, 1.01, 1.0], ["unstable: std 11 % of mean", "2 outliers"]),
    ],
)
def test_trial_caveats_name_instability_drift_and_outliers(seconds, messages):
    assert trial_caveats(seconds=seconds) == messages


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_a_caveat(loss):
    assert loss_caveats([[2.3, 2.2], []]) == []
    (line,) = loss_caveats([[2.3, 2.2], [2.3, loss]])
    assert line.startswith("loss is not finite: learning_rate is too high")


def test_trial_caveats_are_rare_for_quiet_jobs():
    caveats = [trial_caveats(seconds=job) for (job,) in campaigns("lognormal", 1, 5) ** 0.4]
    assert np.mean([bool(messages) for messages in caveats]) <= 0.1


@pytest.mark.parametrize(
    ("loads", "own_cores", "workers", "threads", "messages"),
    [
        ([0.2, None, 1.1], 1.0, 0, 2, []),
        ([None], 1.0, 0, 2, []),
        ([], 1.0, 0, 2, []),
        ([2.5, 2.6, 9.0], 1.0, 0, 2, ["foreign load: load average 2.6, own work 1.0"]),
        ([9.0], 2.0, 8, 2, ["CPU oversubscribed: 8 workers on 2 cores"]),
        ([0.0], 2.0, 8, 4, ["CPU oversubscribed: 8 workers and 4 torch threads on 2 cores"]),
    ],
)
def test_machine_caveats_name_foreign_load_and_oversubscription(
    loads, own_cores, workers, threads, messages
):
    caveats = machine_caveats(
        load_averages=loads,
        own_cores=own_cores,
        num_workers=workers,
        torch_threads=threads,
        usable_cores=2,
    )
    assert caveats == messages


def test_wait_caveats_name_periodic_waits_and_ignore_noise():
    noise = np.exp(0.5 * np.random.default_rng(0).standard_normal(400)) * 1e-3
    periodic = np.where(np.arange(400) % 4 == 1, 8, 1) * noise
    (message,) = wait_caveats(wait_s=periodic, num_workers=4)
    assert message.startswith("worker-periodic: every 4th batch waits 7.6 ms, the others 0.98 ms")
    assert wait_caveats(wait_s=noise, num_workers=4) == []
    assert wait_caveats(wait_s=periodic, num_workers=3) == []
    assert wait_caveats(wait_s=periodic, num_workers=0) == []
    assert wait_caveats(wait_s=periodic[:20], num_workers=4) == []
    assert wait_caveats(wait_s=[0.0] * 40, num_workers=4) == []
