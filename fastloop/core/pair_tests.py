"""Tests of every pair of jobs in a campaign, which use what all of its trials say about the noise.

The rule was chosen by simulation, see experiments/intervals/README.md.
"""

from __future__ import annotations

import math

import numpy as np

from fastloop.core.looks import DIFFERENCES, TIES, share_of_look

SIGNIFICANCE = 0.045
"""Level of the tests behind ranks. At 0.05 the campaigns of two identical jobs that are told apart
are 5 %, so that every other sample of them has more."""
OWN_SHARE = 0.9
"""How much of a pair's own variance is set against the campaign's while its trials are few, see
`_floor_p_values`: as much as a difference of 1.5 times at 10 % noise permits, in ten jobs."""
LARGEST_SHARE = 3
"""How many times the mean variance of the other jobs the noisiest job counts for at most."""
FEWEST_FOR_OWN_NOISE = 5
"""Trials from which the noise of a single job or pair is known well enough to be weighed."""
MOST_TRIALS = 10_000
"""Upper bound of `trials_needed`."""
MOST_SERIAL, LEAST_SHOWN = 0.8, 0.2
"""Bounds of the correlation of successive trials, and of the share of the variance that they show.
"""
NO_NOISE = 1e-20
"""Variances below, of logarithms, are rounding errors."""


def significant_pairs(logs: np.ndarray) -> np.ndarray:
    """Whether jobs differ significantly, for each of their pairs, in the order of `pairs`.

    logs: (..., jobs, rounds), logarithms of seconds; the leading dimensions are campaigns. Of the
    campaigns in which all jobs are equal, at most 5 % have any pair that is told apart.
    """
    return holm(pair_p_values(logs), SIGNIFICANCE)


def significant_at_look(logs: np.ndarray) -> np.ndarray:
    """Whether jobs differ, after a round at which trials=auto looks: of the campaigns in
    which all jobs are equal, at most 3 % have a pair that is told apart at any look."""
    level = DIFFERENCES * share_of_look(logs.shape[-1])
    return holm(pair_p_values(logs, allows_serial=True), level)


def equal_pairs(logs: np.ndarray, margin: float, *, in_looks: bool) -> np.ndarray:
    """Whether jobs surely differ by less than `margin`, in logarithms, for each pair of `pairs`.

    Two one-sided tests (Schuirmann 1987), each corrected for the number of pairs. in_looks: as
    `significant_at_look` looks, with at most 2 % of campaigns with a false claim at any look.
    """
    level = TIES * share_of_look(logs.shape[-1]) if in_looks else SIGNIFICANCE
    above = pair_p_values(logs, distance_from=margin, allows_serial=in_looks)
    below = pair_p_values(logs, distance_from=-margin, allows_serial=in_looks)
    first, second = pairs(logs.shape[-2])
    mean = (logs[..., second, :] - logs[..., first, :]).mean(axis=-1)
    is_sure = np.maximum(above, below) / 2 < level / max(1, len(first))
    return is_sure & (np.abs(mean) < margin)


def pair_p_values(
    logs: np.ndarray, *, distance_from: float = 0.0, allows_serial: bool = False
) -> np.ndarray:
    """Two-sided p values (..., pairs) of means that differ by `distance_from`, not corrected for
    the number of pairs.

    logs: (..., jobs, rounds) from two rounds on. Two jobs: a paired t test. More jobs: the variance
    of a pair is not estimated from its own few trials alone; the test with the campaign's variance
    as the least has to agree with the test with a moderated variance (from five rounds on).
    allows_serial: a job's trials may depend on those before; variances grow by what they show of
    that.
    """
    *_, jobs, rounds = logs.shape
    first, second = pairs(jobs)
    differences = logs[..., second, :] - logs[..., first, :]
    mean, own = differences.mean(axis=-1) - distance_from, differences.var(axis=-1, ddof=1)
    growth = _serial_growth(logs) if allows_serial else np.ones(logs.shape[:-2])
    if jobs == 2:
        return _two_sided(mean, growth[..., None] * own, rounds, rounds - 1)
    p_values = _floor_p_values(logs, mean, growth)
    if rounds < FEWEST_FOR_OWN_NOISE:
        return p_values
    variance, freedom = _moderate(own, rounds - 1)
    freedom = np.minimum(freedom, (jobs - 1) * (rounds - 1))
    moderated = _two_sided(mean, growth[..., None] * variance, rounds, freedom)
    return np.maximum(p_values, moderated)


def pairs(jobs: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the first and of the second job of each pair."""
    return np.triu_indices(jobs, 1)


def holm(p_values: np.ndarray, level: float) -> np.ndarray:
    """Hypotheses (..., tests) rejected by Holm's step-down procedure (1979).

    The smallest p value is compared with level / number of tests, the next with
    level / (number - 1), until one fails.
    """
    tests = p_values.shape[-1]
    order = np.argsort(p_values, axis=-1)
    thresholds = level / np.arange(tests, 0, -1)
    passed = np.take_along_axis(p_values, order, axis=-1) < thresholds
    rejected = np.zeros(p_values.shape, bool)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(passed, axis=-1), axis=-1)
    return rejected


def trials_needed(logs: np.ndarray, effect: float) -> int:
    """Trials of each job at which a difference of `effect` would be significant, at most 10,000.

    logs: (jobs, rounds) so far, two or more of each; effect: a difference of logarithms. Rough,
    since the noise is known roughly after few rounds.
    """
    jobs = len(logs)
    trials = np.arange(2, MOST_TRIALS + 1)
    p_values = _two_sided(
        np.full(len(trials), effect),
        np.full(len(trials), _residual_variance(logs)),
        trials,
        (jobs - 1) * (trials - 1),
    )
    enough = p_values < SIGNIFICANCE / (jobs * (jobs - 1) / 2)
    return int(trials[np.argmax(enough)]) if enough.any() else MOST_TRIALS


def welch_p_value(new: np.ndarray, base: np.ndarray) -> float:
    """Two-sided p value of equal means of two separate sets of logarithms, two or more of each.

    Welch's t test, which expects no equal variances.
    """
    errors = np.array([new.var(ddof=1) / len(new), base.var(ddof=1) / len(base)])
    error = errors.sum()
    parts = (errors**2 / (len(new) - 1, len(base) - 1)).sum()
    freedom = error**2 / parts if parts > 0 else 1.0
    return float(_two_sided(new.mean() - base.mean(), error, 1, freedom))


def _floor_p_values(logs: np.ndarray, mean: np.ndarray, growth: np.ndarray) -> np.ndarray:
    """p values with each pair's variance, or the campaign's if that is larger.

    With few trials a small variance is luck, or that of jobs whose trials were all fast or all slow
    ones; the campaign's guards against both. From five trials on a single noisy job counts for no
    more than LARGEST_SHARE of the others, whose differences it would hide.
    """
    *_, jobs, rounds = logs.shape
    of_jobs = _job_variances(logs)
    campaign, share = _residual_variance(logs), OWN_SHARE
    if rounds >= FEWEST_FOR_OWN_NOISE:
        ordered = np.sort(of_jobs, axis=-1)
        others = ordered[..., :-1].mean(axis=-1)
        largest = np.minimum(ordered[..., -1], LARGEST_SHARE * others)
        campaign, share = 2 * (others * (jobs - 1) + largest) / jobs, 1
    first, second = pairs(jobs)
    own = of_jobs[..., first] + of_jobs[..., second]
    variance = growth[..., None] * np.maximum(share * own, campaign[..., None])
    return _two_sided(mean, variance, rounds, (jobs - 1) * (rounds - 1))


def _serial_growth(logs: np.ndarray) -> np.ndarray:
    """(...): factor by which the variance of a job's mean is larger than independent trials give.

    The correlation of trials that follow each other is the jobs' mean, with its bias of short
    series taken out (Kendall 1954), and half its standard error added: it has to be seen in few
    rounds. Of a first-order autoregressive process; 1 if that correlation is not above zero.
    """
    *_, jobs, rounds = logs.shape
    residuals = logs - logs.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=-2, keepdims=True)
    products = (residuals[..., 1:] * residuals[..., :-1]).sum(axis=-1)
    squares = (residuals**2).sum(axis=-1)
    seen = (products / np.maximum(squares, NO_NOISE)).mean(axis=-1)
    correlation = (rounds * seen + 1) / max(rounds - 3, 1)
    correlation += 0.5 / math.sqrt(rounds * (jobs - 1))
    correlation = np.clip(correlation, 0, MOST_SERIAL)
    lags = np.arange(1, rounds)
    of_mean = 1 + 2 * ((1 - lags / rounds) * correlation[..., None] ** lags).sum(axis=-1)
    # serial trials also show less variance than they have
    return of_mean * (rounds - 1) / np.maximum(rounds - of_mean, LEAST_SHOWN * rounds)


def _residual_variance(logs: np.ndarray) -> np.ndarray:
    """(...): the variance of a difference of two jobs, by the additive model of jobs and rounds."""
    *_, jobs, rounds = logs.shape
    residuals = logs - logs.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=-2, keepdims=True)
    return 2 * (residuals**2).sum(axis=(-2, -1)) / ((jobs - 1) * (rounds - 1))


def _job_variances(logs: np.ndarray) -> np.ndarray:
    """(..., jobs): the variance of each job's trials, less what its rounds share, which is the
    median over the jobs."""
    residuals = logs - logs.mean(axis=-1, keepdims=True)
    residuals = residuals - np.median(residuals, axis=-2, keepdims=True)
    return residuals.var(axis=-1, ddof=1)


def _moderate(variances: np.ndarray, freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Variances (..., pairs) shrunk towards a common one, and their degrees of freedom.

    An empirical Bayes estimate (Smyth 2004, section 6.2): the common variance and its weight, in
    degrees of freedom, follow from the mean and the variance of the logarithms. The more the
    variances differ beyond chance, the less is borrowed.
    """
    from scipy.special import digamma, polygamma

    logs = np.log(np.maximum(variances, NO_NOISE))
    center = logs.mean(axis=-1, keepdims=True) - digamma(freedom / 2) + math.log(freedom / 2)
    excess = logs.var(axis=-1, ddof=1, keepdims=True) - polygamma(1, freedom / 2)
    prior = 2 * _invert_trigamma(np.maximum(excess, 1e-6))
    common = np.exp(center + digamma(prior / 2) - np.log(prior / 2))
    return (prior * common + freedom * variances) / (prior + freedom), prior + freedom


def _invert_trigamma(values: np.ndarray) -> np.ndarray:
    """Arguments at which the trigamma function has these values, by Newton's method."""
    from scipy.special import polygamma

    arguments = 0.5 + 1 / values
    for _ in range(10):
        trigamma = polygamma(1, arguments)
        arguments = arguments + trigamma * (1 - trigamma / values) / polygamma(2, arguments)
    return arguments


def _two_sided(
    mean: np.ndarray,
    variance: np.ndarray,
    rounds: int | np.ndarray,
    freedom: float | np.ndarray,
) -> np.ndarray:
    """p values of a mean of `rounds` differences of that variance, by Student's t; with no noise 0,
    or 1 without a difference."""
    from scipy.special import stdtr

    error, distance = np.sqrt(variance / rounds), np.abs(mean)
    exact = error <= 1e-12 * distance
    statistic = distance / np.where(exact, 1, error)
    return np.where(exact, distance < 1e-12, 2 * stdtr(freedom, -statistic))
