"""Noise that wanders: independent trials of a known correlation, and how probable each one is."""

from __future__ import annotations

import numpy as np
import pytest

from fastloop.core.pair_tests import pair_p_values
from fastloop.core.serial_noise import (
    CORRELATIONS,
    PRIOR,
    correlation_of_means,
    correlation_weights,
    independent_series,
    interval_growth,
)


def wandering(correlation, shape, seed=0):
    shape = (shape,) if isinstance(shape, int) else shape
    logs = np.random.default_rng(seed).standard_normal(shape)
    for step in range(1, shape[-1]):
        fresh = (1 - correlation**2) ** 0.5 * logs[..., step]
        logs[..., step] = correlation * logs[..., step - 1] + fresh
    return logs


def test_prior_is_a_probability_of_each_correlation():
    assert len(PRIOR) == len(CORRELATIONS)
    assert sum(PRIOR) == pytest.approx(1)


@pytest.mark.parametrize("rounds", [2, 4, 20])
def test_independent_series_keeps_a_constant_and_without_correlation_everything(rounds):
    assert independent_series(np.full(rounds, 1.5)) == pytest.approx(1.5)
    logs = wandering(0, (3, rounds))
    assert independent_series(logs)[0] == pytest.approx(logs)


@pytest.mark.parametrize("number", [3, 9])
def test_trials_of_a_known_correlation_become_uncorrelated_and_of_equal_variance(number):
    logs = wandering(CORRELATIONS[number], (40_000, 6))
    covariance = np.cov(independent_series(logs)[number], rowvar=False)
    variance = covariance[0, 0]
    assert covariance == pytest.approx(variance * np.eye(6), abs=0.06 * variance)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("trials", [1, 2, 8])
def test_means_of_successive_trials_have_their_own_correlation(correlation, trials):
    means = wandering(correlation, (100_000, 2 * trials)).reshape(-1, 2, trials).mean(axis=-1)
    seen = np.corrcoef(means, rowvar=False)[0, 1]
    assert correlation_of_means(correlation, trials) == pytest.approx(seen, abs=0.01)


@pytest.mark.parametrize("number", [0, 3, 6, 9])
def test_many_wandering_jobs_show_their_correlation(number):
    weights = correlation_weights(wandering(CORRELATIONS[number], (40, 20)))
    assert weights.sum() == pytest.approx(1)
    assert abs(weights.argmax() - number) <= 1


def test_weights_are_the_same_in_other_units_and_with_shocks_of_whole_rounds():
    logs = wandering(0.5, (4, 10))
    shocks = np.random.default_rng(1).standard_normal(10)
    assert correlation_weights(7 * logs + shocks) == pytest.approx(correlation_weights(logs))


def test_average_over_the_prior_of_the_correlation_keeps_the_level():
    """Two equal jobs whose correlation is drawn from the prior are told apart at 5 % in 5 %."""
    rng = np.random.default_rng(0)
    drawn = rng.choice(CORRELATIONS, size=6_000, p=PRIOR)
    logs = [wandering(each, (2, 8), seed) for seed, each in enumerate(drawn)]
    p_values = pair_p_values(np.stack(logs), allows_serial=True)
    assert (p_values < 0.05).mean() == pytest.approx(0.05, abs=0.01)


def test_intervals_grow_if_values_wander_and_never_shrink():
    steady, wander = (
        [interval_growth(row, 0.025) for row in wandering(each, (50, 20))] for each in (0, 0.9)
    )
    assert min(steady) >= 1
    assert np.median(steady) < 1.5
    assert np.median(wander) > 3
    assert interval_growth(np.full(5, 0.3), 0.025) == 1
