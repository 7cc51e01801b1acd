"""Known answers: simulated campaigns with known ratios, and what any values may do to a figure."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastloop import flags, stats

CAMPAIGNS = 1_000
KINDS = ("lognormal", "drift", "heavy")

anything = st.floats(min_value=0, max_value=1e12) | st.just(math.inf)
positive = st.floats(min_value=1e-9, max_value=1e9)
pairs = st.lists(st.tuples(positive, positive), min_size=5, max_size=25)


def campaigns(kind, jobs, trials, seed=0):
    """Seconds (campaign, job, round) of equally fast jobs.

    lognormal: 5 % noise. drift: besides, +10 % over the rounds and a shock of 10 % that a round's
    jobs share. heavy: t with 3 degrees of freedom, and one trial in ten takes 30-50 % longer.
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


def named(rows):
    return {f"job{number}": row for number, row in enumerate(rows)}


@pytest.mark.parametrize("trials", [5, 10, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_the_ratios_interval_covers_the_truth(kind, trials):
    found = [stats.ratio(1.25 * new, base) for new, base in campaigns(kind, 2, trials)]
    assert 0.93 <= np.mean([one.low <= 1.25 <= one.high for one in found]) <= 0.97


@pytest.mark.parametrize("trials", [5, 7, 20])
@pytest.mark.parametrize("kind", ["lognormal", "heavy"])
def test_the_medians_interval_covers_the_truth(kind, trials):
    truth = np.median(campaigns(kind, 10, 100, seed=1))
    found = [stats.interval(job) for (job,) in campaigns(kind, 1, trials)]
    assert 0.93 <= np.mean([low <= truth <= high for low, high in found]) <= 0.97


@pytest.mark.parametrize("jobs", [2, 5])
@pytest.mark.parametrize("trials", [5, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_identical_loaders_share_a_rank(kind, trials, jobs):
    """Any pair told apart counts; the noise is so large that 2 % alone hold little back."""
    found = [stats.ranking(named(rows)).ranks for rows in campaigns(kind, jobs, trials)]
    assert np.mean([max(ranks.values()) > 1 for ranks in found]) <= 0.05


def test_five_trials_decide_a_clear_case():
    slowness = np.array([1, 1.2, 1, 2])[:, None]
    found = [
        stats.ranking(named(slowness * jobs**0.2)).ranks for jobs in campaigns("drift", 4, 5)[:300]
    ]
    right = {"job0": 1, "job2": 1, "job1": 3, "job3": 4}
    assert np.mean([ranks == right for ranks in found]) >= 0.9


def test_less_than_two_percent_is_a_tie_however_sure():
    base = [1 + step / 10 for step in range(20)]
    for factor, rank in ((1.019, 1), (1.021, 2)):
        found = stats.ranking({"slow": [factor * one for one in base], "fast": base})
        assert found.ranks == {"fast": 1, "slow": rank}
        assert found.order == ("fast", "slow")


def test_a_job_is_compared_to_the_first_of_the_group_before_it():
    """b can't be told from a, nor c from b, but c can from a: c starts a group, d joins it."""
    wave = np.array([1, -1, 1, -1, 1, -1, 1, -1])
    jobs = {"a": 1 + 0 * wave, "b": 1.015 + 0 * wave, "c": 1.03 + 0 * wave, "d": 1.04 + 0.01 * wave}
    assert stats.ranking(jobs).ranks == {"a": 1, "b": 1, "c": 3, "d": 3}


def test_rounds_pair_the_jobs():
    """Each round is ten times the one before; the 5 % between the jobs still show."""
    base = [10.0**step for step in range(5)]
    found = stats.ratio([1.05 * value for value in base], base)
    assert (found.low, found.estimate, found.high) == pytest.approx((1.05, 1.05, 1.05))
    assert stats.ranking({"new": [1.05 * value for value in base], "base": base}).ranks["new"] == 2


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ({"a": [1.0], "b": [2.0]}, "1 trial; the same number of each, 5 or more, would do"),
        (
            {"a": [1.0, 1.1], "b": [2.0, 2.0]},
            "2 trials; about 47 of each would show a difference of 2 %",
        ),
        ({"a": [1.0, 1.0, 1.0], "b": [1.0]}, "1 to 3 trials a job; the same number of each"),
        ({"a": [2.0] * 4, "b": [1.0] * 5}, "4 to 5 trials a job; about 5 of each would show"),
        ({"a": [1.0] * 5, "b": []}, "0 to 5 trials a job; the same number of each"),
        ({"a": [1.0] * 5, "b": [0.0] * 5}, "a trial's time is not a positive number"),
        ({"a": [1.0] * 5, "b": [math.nan] * 5}, "a trial's time is not a positive number"),
    ],
)
def test_undetermined_says_why_and_how_many_would_do(seconds, told):
    found = stats.ranking(seconds)
    assert found.ranks == {}
    assert sorted(found.order) == ["a", "b"]
    assert found.undetermined.startswith(told)


def test_nothing_to_compare_is_no_doubt():
    assert stats.ranking({}) == stats.Ranking(ranks={}, undetermined="", order=())
    assert stats.ranking({"a": [1.0]}).ranks == {"a": 1}
    assert stats.ranking({"a": []}).undetermined.startswith("0 trials")


def test_as_many_trials_as_said_make_the_effect_significant():
    rng = np.random.default_rng(0)
    base, new = np.exp(0.05 * rng.standard_normal((2, 20)))
    count = stats.trials_needed(new, base)
    spread = np.std(np.log(new / base), ddof=1)
    for trials, significant in ((count, True), (count - 1, False)):
        noise = np.random.default_rng(1).standard_normal(trials)
        noise -= noise.mean()
        noise *= spread / np.std(noise, ddof=1)
        found = stats.ratio(np.exp(noise + math.log(1.02)), np.ones(trials))
        assert (found.p_value < 0.05) == significant
    assert stats.trials_needed(new, base, comparisons=10) > count
    assert stats.trials_needed(new, base, effect=0.1) < count
    assert stats.trials_needed(base, base) == stats.FEWEST_FOR_RANKING
    assert stats.trials_needed([1.0], [1.0]) is None


@given(pairs)
@settings(max_examples=50, deadline=None)
def test_a_ratio_turned_round_is_its_inverse(rows):
    new, base = zip(*rows, strict=True)
    found, turned = stats.ratio(new, base), stats.ratio(base, new)
    assert found.low <= found.estimate <= found.high
    assert turned.estimate == pytest.approx(1 / found.estimate)
    assert turned.p_value == pytest.approx(found.p_value)
    assert 0 <= found.p_value <= 1


@given(pairs, st.floats(min_value=1e-3, max_value=1e3))
@settings(max_examples=50, deadline=None)
def test_the_unit_of_time_does_not_matter(rows, unit):
    new, base = zip(*rows, strict=True)
    found = stats.ratio(new, base)
    other = stats.ratio([unit * value for value in new], [unit * value for value in base])
    assert (other.low, other.high) == pytest.approx((found.low, found.high))


@given(st.dictionaries(st.text(max_size=3), st.lists(anything, max_size=7), max_size=6))
@settings(max_examples=100, deadline=None)
def test_any_times_give_either_ranks_or_a_reason(seconds):
    found = stats.ranking(seconds)
    assert sorted(found.order) == sorted(seconds)
    assert bool(found.ranks) != bool(found.undetermined) or not seconds
    if found.ranks:
        assert tuple(found.ranks) == found.order
        assert all(
            rank in (before, place)
            for place, (before, rank) in enumerate(itertools.pairwise(found.ranks.values()), 2)
        )


@given(st.lists(anything, max_size=12))
@settings(max_examples=100, deadline=None)
def test_any_trials_give_an_interval_around_their_median_or_none(values):
    found = stats.interval(values)
    assert (found is None) == (len(values) < 5 or not all(0 < one < math.inf for one in values))
    if found:
        assert found[0] <= np.median(values) * (1 + 1e-9)
        assert np.median(values) <= found[1] * (1 + 1e-9)


@given(st.lists(anything, max_size=12), st.lists(anything, max_size=12))
@settings(max_examples=50, deadline=None)
def test_no_values_upset_a_ratio_or_a_flag(new, base):
    found = stats.ratio(new, base)
    if len(new) != len(base) or len(new) < 5 or not all(0 < one < math.inf for one in new + base):
        assert found is None
    flags.of_trials(seconds=new)
    flags.of_waits(wait_s=new, num_workers=2)


def test_extreme_ratios_neither_warn_nor_crash():
    tiny, huge = [5e-324] * 5, [1e308] * 5
    assert stats.interval([1e300] * 4 + [1.7e308])[1] == math.inf
    assert stats.ratio(huge, tiny).estimate == math.inf
    assert stats.ratio(tiny, huge).estimate == 0
    assert stats.ratio(tiny, tiny) == stats.Ratio(estimate=1, low=1, high=1, p_value=1)
    assert stats.ranking({"huge": huge, "tiny": tiny}).ranks == {"tiny": 1, "huge": 2}


@pytest.mark.parametrize(
    ("seconds", "told"),
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
def test_flags_of_trials(seconds, told):
    assert flags.of_trials(seconds=seconds) == told


def test_quiet_jobs_are_seldom_flagged():
    quiet = [flags.of_trials(seconds=job) for (job,) in campaigns("lognormal", 1, 5) ** 0.4]
    assert np.mean([bool(found) for found in quiet]) <= 0.1


@pytest.mark.parametrize(
    ("loads", "own", "workers", "threads", "told"),
    [
        ([0.2, None, 1.1], 1.0, 0, 2, []),
        ([None], 1.0, 0, 2, []),
        ([], 1.0, 0, 2, []),
        ([2.5, 2.6, 9.0], 1.0, 0, 2, ["foreign load: load average 2.6, own work 1.0"]),
        ([9.0], 2.0, 8, 2, ["CPU oversubscribed: 8 workers on 2 cores"]),
        ([0.0], 2.0, 8, 4, ["CPU oversubscribed: 8 workers and 4 torch threads on 2 cores"]),
    ],
)
def test_flags_of_the_machine(loads, own, workers, threads, told):
    found = flags.of_machine(
        load_averages=loads,
        own_cores=own,
        num_workers=workers,
        torch_threads=threads,
        usable_cores=2,
    )
    assert found == told


def test_every_nth_batch_that_waits_is_flagged_and_noise_is_not():
    noise = np.exp(0.5 * np.random.default_rng(0).standard_normal(400)) * 1e-3
    periodic = np.where(np.arange(400) % 4 == 1, 8, 1) * noise
    (told,) = flags.of_waits(wait_s=periodic, num_workers=4)
    assert told.startswith("worker-periodic: every 4th batch waits 7.6 ms, the others 0.98 ms")
    assert flags.of_waits(wait_s=noise, num_workers=4) == []
    assert flags.of_waits(wait_s=periodic, num_workers=3) == []
    assert flags.of_waits(wait_s=periodic, num_workers=0) == []
    assert flags.of_waits(wait_s=periodic[:20], num_workers=4) == []
    assert flags.of_waits(wait_s=[0.0] * 40, num_workers=4) == []
