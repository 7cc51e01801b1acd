"""Statistics of simulated campaigns with known ratios, and of arbitrary values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastloop.core import stats
from fastloop.sweep.caveats import crowd_caveats, loss_caveats, trial_caveats, wait_caveats

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


@pytest.mark.heavy
@pytest.mark.parametrize("trials", [3, 4, 5, 20])
@pytest.mark.parametrize("kind", ["lognormal", "heavy"])
def test_ratio_interval_covers_the_truth(kind, trials):
    ratios = [stats.ratio(1.25 * new, base) for new, base in campaigns(kind, 2, trials)]
    assert 0.93 <= np.mean([ratio.low <= 1.25 <= ratio.high for ratio in ratios]) <= 0.97


@pytest.mark.parametrize("trials", [3, 4, 5, 7])
@pytest.mark.parametrize("kind", ["lognormal", "heavy"])
def test_median_interval_covers_the_truth(kind, trials):
    truth = np.median(campaigns(kind, 10, 100, seed=1))
    intervals = [stats.interval(job) for (job,) in campaigns(kind, 1, trials)]
    assert 0.93 <= np.mean([low <= truth <= high for low, high in intervals]) <= 0.97


def test_ratio_pairs_the_jobs_of_a_round():
    """Each round is ten times the one before; the 5 % between the jobs still show."""
    base = [10.0**step for step in range(5)]
    ratio = stats.ratio([1.05 * value for value in base], base)
    assert (ratio.low, ratio.estimate, ratio.high) == pytest.approx((1.05, 1.05, 1.05))


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


@given(st.lists(anything, max_size=12))
def test_interval_of_any_trials_includes_their_median_or_is_none(values):
    interval = stats.interval(values)
    assert (interval is None) == (
        len(values) < 3 or not all(0 < value < math.inf for value in values)
    )
    if interval:
        assert interval[0] <= np.median(values) * (1 + 1e-9)
        assert np.median(values) <= interval[1] * (1 + 1e-9)


@given(st.lists(anything, max_size=12), st.lists(anything, max_size=12))
def test_ratio_and_caveats_accept_any_values(new, base):
    ratio = stats.ratio(new, base)
    if (
        len(new) != len(base)
        or len(new) < 3
        or not all(0 < value < math.inf for value in new + base)
    ):
        assert ratio is None
    trial_caveats(seconds=new)
    wait_caveats(wait_s=new, num_workers=2)


def test_ratio_of_few_rounds_is_a_range_that_proves_nothing():
    ratio = stats.ratio_or_range([6.0, 6.6], [1.0, 1.0])
    assert (ratio.low, ratio.high) == pytest.approx((6, 6.6))
    assert not ratio.is_interval
    one = stats.ratio_or_range([6.0], [1.0])
    assert (one.low, one.estimate, one.high) == pytest.approx((6, 6, 6))
    assert stats.ratio_or_range([6.0, 6.1, 6.2], [1.0] * 3).is_interval
    assert stats.ratio_or_range([], []) is None
    assert stats.ratio_or_range([1.0], [1.0, 1.0]) is None
    assert stats.ratio_or_range([0.0], [1.0]) is None


def test_ratio_of_extreme_values_neither_warns_nor_fails():
    tiny, huge = [5e-324] * 5, [1e308] * 5
    assert stats.interval([1e300] * 4 + [1.7e308])[1] == math.inf
    assert stats.ratio(huge, tiny).estimate == math.inf
    assert stats.ratio(tiny, huge).estimate == 0
    assert stats.ratio(tiny, tiny) == stats.Ratio(estimate=1, low=1, high=1, p_value=1)


@pytest.mark.parametrize(
    ("seconds", "messages"),
    [
        ([1.0] * 5, []),
        ([1.0], []),
        ([0.0] * 5, []),
        ([1.0, 1.01, 0.99, 1.0, 1.01], []),
        ([1.0, 1.4, 0.7, 1.3, 0.8], ["unstable: std 29 %"]),
        ([1.0, 1.02, 1.04, 1.06, 1.08], []),  # one of 60 campaigns rises or falls by chance
        ([1.0, 1.02, 1.04, 1.06, 1.08, 1.1], ["drift: +10 % from the first round to the last"]),
        ([1.0, 0.98, 0.96, 0.94, 0.92, 0.9], ["drift: -11 % from the first round to the last"]),
        ([1.0, 1.01, 1.2, 1.0, 1.01, 1.0, 1.01, 1.0], ["outliers: 1"]),
        ([1.0, 1.01, 1.2, 1.0, 1.01, 0.8, 1.01, 1.0], ["unstable: std 11 %, 2 outliers"]),
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
    ("workers", "threads", "messages"),
    [
        (2, 2, []),
        (8, 2, ["CPU oversubscribed: 8 workers on 2 cores"]),
        (8, 4, ["CPU oversubscribed: 8 workers and 4 torch threads on 2 cores"]),
    ],
)
def test_more_workers_and_threads_than_cores_are_named(workers, threads, messages):
    given = {"num_workers": workers, "torch_threads": threads, "usable_cores": 2}
    assert crowd_caveats(**given) == messages


def test_wait_caveats_name_periodic_waits_and_ignore_noise():
    noise = np.exp(0.5 * np.random.default_rng(0).standard_normal(400)) * 1e-3
    periodic = np.where(np.arange(400) % 4 == 1, 8, 1) * noise
    (message,) = wait_caveats(wait_s=periodic, num_workers=4)
    assert message.startswith("worker-periodic: the loop waits 7.6 ms for every 4th batch and ")
    assert wait_caveats(wait_s=noise, num_workers=4) == []
    assert wait_caveats(wait_s=periodic, num_workers=3) == []
    assert wait_caveats(wait_s=periodic, num_workers=0) == []
    assert wait_caveats(wait_s=periodic[:20], num_workers=4) == []
    assert wait_caveats(wait_s=[0.0] * 40, num_workers=4) == []
