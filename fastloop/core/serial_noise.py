"""Correct tests and intervals for serial correlation: successive trials may resemble each other.

A job's trials are modelled as a first-order autoregressive process of an unknown correlation. For a
known correlation, `independent_series` turns the trials into independent ones, for which the usual
tests are exact. `correlation_weights` returns the probability of each correlation, and p values are
averaged with these weights (Zellner and Tiao 1964, Bayesian analysis of the regression model with
autocorrelated errors, Journal of the American Statistical Association 59).
experiments/auto_trials/README.md has the false claims for each correlation.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

CORRELATIONS = tuple(tenth / 10 for tenth in range(10))
"""The correlations of successive trials that are considered."""
PRIOR = (0.56, 0.06, 0.06, 0.06, 0.06, 0.05, 0.05, 0.04, 0.03, 0.03)
"""The probability of each of CORRELATIONS before anything is measured. That of 0 is the largest,
because measured trials, relative to the median of their round, are independent: the 141 cells of a
round of the suite are e^61 times as probable with a correlation of 0 as with one of 0.9. The others
are so large that at most 5 % of sweeps make a false claim if the correlation is 0.6 or less. See
experiments/auto_trials/README.md."""
NO_NOISE = 1e-20
"""Sums of squared logarithms below this one are rounding errors."""


class _Whitening(NamedTuple):
    """For each correlation, maps of a series of n values, which whiten the series.

    The values of a whitened series are independent, and have the variance of the process.
    """

    to_independent: np.ndarray
    """(correlations, n, n) float64: maps a series to independent trials of the same mean."""
    to_residuals: np.ndarray
    """(correlations, n, n) float64: for each `form` in it, series @ form @ series is the sum of the
    squared residuals of the whitened series around the mean that fits best."""
    log_scale: np.ndarray
    """(correlations,) float64: logarithm of the likelihood's factor that all series share."""


def independent_series(logs: np.ndarray, trials_per_round: int = 1) -> np.ndarray:
    """(correlations, ..., rounds): for each of `CORRELATIONS`, the trials made independent.

    logs: (..., rounds) logarithms, each the mean of `trials_per_round` successive trials. For a
    correlation, the mean of the result is the best estimate of the mean of `logs`. The usual
    formula for independent trials gives the variance of this estimate.
    """
    maps = _whitening(logs.shape[-1], trials_per_round).to_independent
    return np.stack([logs @ each.T for each in maps])


def correlation_weights(logs: np.ndarray, trials_per_round: int = 1) -> np.ndarray:
    """(correlations, ...): probability of each of `CORRELATIONS`, which all jobs have in common.

    logs: (..., jobs, rounds) logarithms for two rounds or more, each the mean of `trials_per_round`
    successive trials. The level and the scale of each job's noise are integrated out of the
    likelihood; the prior is `PRIOR`.
    """
    *_, jobs, rounds = logs.shape
    maps = _whitening(rounds, trials_per_round)
    # A disturbance of a whole round cancels in the differences of jobs, so the median of each round
    # is subtracted. The mean of a round would carry the noise of one job into all others.
    series = logs - np.median(logs, axis=-2, keepdims=True)
    squares = np.stack([((series @ form) * series).sum(axis=-1) for form in maps.to_residuals])
    scale = maps.log_scale.reshape(-1, *(1,) * (squares.ndim - 1))
    # A normal likelihood, integrated over the level and over the scale (with density 1 / scale), is
    # proportional to the sum of squares to the power -(rounds - 1) / 2.
    likelihoods = scale - (rounds - 1) / 2 * np.log(np.maximum(squares, NO_NOISE))
    # The medians were subtracted, so the series of all jobs count as one independent series less.
    prior = np.log(PRIOR).reshape(-1, *(1,) * (squares.ndim - 2))
    posterior = prior + likelihoods.sum(axis=-1) * (jobs - 1) / jobs
    weights = np.exp(posterior - posterior.max(axis=0))
    return weights / weights.sum(axis=0)


def interval_growth(differences: np.ndarray, tail: float, trials_per_round: int = 1) -> float:
    """Factor by which an interval of the mean is wider than Student's if trials may be correlated.

    differences: (rounds,) logarithms of the ratio of two jobs for three rounds or more, each the
    mean of `trials_per_round` successive trials. tail: probability beyond each end of the interval.
    Returns 1 or more.
    """
    from scipy.optimize import root_scalar
    from scipy.special import stdtr, stdtrit

    freedom = len(differences) - 1
    spread = differences.std(ddof=1)
    if spread**2 < NO_NOISE:
        return 1.0
    # The distribution of the mean is a mixture: Student's distribution for each correlation, with
    # the probability of that correlation as its weight.
    lists = np.stack([np.zeros(len(differences)), differences])
    weights = correlation_weights(lists, trials_per_round)
    growths = independent_series(differences, trials_per_round).std(axis=-1, ddof=1) / spread
    alone = stdtrit(freedom, 1 - tail)

    def beyond(growth: float) -> float:
        """Probability beyond an end of Student's interval widened by `growth`, less `tail`."""
        return float((weights * stdtr(freedom, -alone * growth / growths)).sum()) - tail

    # The interval is never narrower than Student's, which is right for independent trials.
    return max(1.0, root_scalar(beyond, bracket=(0, 2 * max(1.0, growths.max()))).root)


def correlation_of_means(correlation: float, trials: int) -> float:
    """The correlation of the means of adjacent groups of `trials` successive trials.

    >>> round(correlation_of_means(0.9, trials=8), 2)
    0.59
    """
    if trials == 1 or correlation == 0:
        return correlation
    # The covariance of two adjacent means, and the variance of one mean, are sums of powers of the
    # correlation. The result is their ratio, so a factor that both sums share is left out.
    power = correlation**trials
    covariance = correlation * (1 - power) ** 2
    return covariance / (trials * (1 - correlation**2) - 2 * correlation * (1 - power))


@cache
def _whitening(rounds: int, trials_per_round: int) -> _Whitening:
    """The maps for series of `rounds` values, each the mean of `trials_per_round` trials."""
    ones = np.ones(rounds)
    unit = ones / math.sqrt(rounds)
    independent, forms, scales = [], [], []
    for of_trials in CORRELATIONS:
        # Means of successive trials resemble each other less than the trials do. The process that
        # is assumed here has the correlation of adjacent means. That of means farther apart is in
        # fact a little lower.
        correlation = correlation_of_means(of_trials, trials_per_round)
        # Prais and Winsten 1954: the first trial stays as it is. The part of each later trial that
        # its predecessor predicts is subtracted. If the process has variance 1, the results are
        # independent, and have variance 1.
        innovation = math.sqrt(1 - correlation**2)
        white = (np.eye(rounds) - correlation * np.eye(rounds, k=-1)) / innovation
        white[0, 0] = 1
        of_mean = white @ ones
        information = float(of_mean @ of_mean)
        direction = of_mean / math.sqrt(information)
        # This is the smallest rotation that turns the direction of the mean into that of equal
        # trials. So each result depends mostly on its own round.
        both = direction + unit
        rotation = np.eye(rounds) - np.outer(both, both) / (1 + direction @ unit)
        rotation += 2 * np.outer(unit, direction)
        independent.append(math.sqrt(rounds / information) * rotation @ white)
        forms.append(white.T @ (np.eye(rounds) - np.outer(direction, direction)) @ white)
        scales.append(-(rounds - 1) * math.log(innovation) - math.log(information) / 2)
    return _Whitening(np.stack(independent), np.stack(forms), np.array(scales))
