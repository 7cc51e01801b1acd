"""Tests of every pair of jobs in a campaign, with the noise estimated from all of its trials.

A campaign is a set of jobs that have all run the same number of trials, trial k in round k. All
tests are on logarithms, as noise multiplies times. The rule was chosen by simulation, see
experiments/intervals/README.md.
"""

from __future__ import annotations

import math

import numpy as np

from fastloop.core.auto_trials import DIFFERENCES, TIES
from fastloop.core.serial_noise import correlation_weights, independent_series

SIGNIFICANCE = 0.045
"""Level of the tests for ranks, below the promised 5 %. At 0.05 the expected share of false
differences is exactly 5 %, so about half of all simulations would find more. 0.045 leaves a
margin."""
OWN_SHARE = 0.9
"""With fewer than five trials, `_early_floor` is the larger of the campaign's variance and this
share of the pair's own variance. 0.9 is a compromise between power and unequal noise: 1.0 finds one
slower job of ten (1.5 times, 10 % noise) in 94.8 % instead of 96 % of campaigns; 0.8 tells
unequally noisy equal jobs apart in 10 % instead of 9 %."""
LARGEST_SHARE = 3
"""The variance of the noisiest job is capped at this many times the mean variance of the
others."""
FEWEST_FOR_OWN_NOISE = 5
"""Fewest trials that show the noise of a single job or pair well enough to be used."""
MOST_TRIALS = 10_000
"""Upper bound of `trials_needed`."""
NO_NOISE = 1e-20
"""Variances of logarithms below this one are rounding errors."""


def significant_pairs(logs: np.ndarray) -> np.ndarray:
    """True for each pair of jobs that differs significantly, in the order of `pairs`.

    logs: (..., jobs, rounds), logarithms of seconds; the leading dimensions are campaigns. Of the
    campaigns in which all jobs are equal, at most 5 % have any pair that differs significantly.
    """
    return holm(pair_p_values(logs), SIGNIFICANCE)


def significant_at_look(logs: np.ndarray, look_share: float) -> np.ndarray:
    """True for each pair of jobs that differs, after a round at which trials=auto looks.

    look_share: the share of this look, see core/auto_trials.py. Of the campaigns in which all jobs
    are equal, at most 3 % have a pair that is told apart at any look.
    """
    return holm(pair_p_values(logs, allows_serial=True), DIFFERENCES * look_share)


def equal_pairs(logs: np.ndarray, margin: float, *, look_share: float | None) -> np.ndarray:
    """True for each pair of jobs that surely differs by less than `margin`, in logarithms.

    Two one-sided tests (Schuirmann 1987), each corrected for the number of pairs. look_share: the
    share of this look with trials=auto, by which at most 2 % of campaigns have a false claim at any
    look; None with a fixed number of trials.
    """
    in_looks = look_share is not None
    level = TIES * look_share if look_share is not None else SIGNIFICANCE
    above = pair_p_values(logs, distance_from=margin, allows_serial=in_looks)
    below = pair_p_values(logs, distance_from=-margin, allows_serial=in_looks)
    first, second = pairs(logs.shape[-2])
    mean = (logs[..., second, :] - logs[..., first, :]).mean(axis=-1)
    # The p values are two-sided and the tests one-sided, so half of the larger p value counts. It
    # is also small if the mean lies far outside of the margin: the second condition excludes this.
    is_sure = np.maximum(above, below) / 2 < level / max(1, len(first))
    return is_sure & (np.abs(mean) < margin)


def pair_p_values(
    logs: np.ndarray,
    *,
    distance_from: float = 0.0,
    allows_serial: bool = False,
    trials_per_round: int = 1,
) -> np.ndarray:
    """Two-sided p values (..., pairs) of the hypothesis that the means of a pair differ by
    `distance_from`, not corrected for the number of pairs.

    logs: (..., jobs, rounds), two rounds or more. Two jobs are compared by a paired t test. If
    there are more jobs, the p value is the larger p value of two tests. The first raises a pair's
    variance to at least the campaign's. The second, from five rounds on, shrinks it towards the
    variance that all pairs share. allows_serial: successive trials of a job may be correlated. The
    p values are averaged over the possible correlations, see core/serial_noise.py.
    trials_per_round: each value of `logs` is the mean of this many successive trials. Such means
    are less correlated than single trials.
    """
    if not allows_serial:
        return _independent_p_values(logs, distance_from)
    weights = correlation_weights(logs, trials_per_round)[..., None]
    series = independent_series(logs, trials_per_round)
    p_values = [_independent_p_values(each, distance_from) for each in series]
    return (weights * np.stack(p_values)).sum(axis=0)


def _independent_p_values(logs: np.ndarray, distance_from: float) -> np.ndarray:
    """The result of `pair_p_values` if the trials of a job are not correlated."""
    *_, jobs, rounds = logs.shape
    first, second = pairs(jobs)
    differences = logs[..., second, :] - logs[..., first, :]
    mean = differences.mean(axis=-1) - distance_from
    own = differences.var(axis=-1, ddof=1)
    # With two jobs, no other job tells anything about the noise; the paired t test is exact.
    if jobs == 2:
        return _two_sided(mean, own, rounds, rounds - 1)
    p_values = _floor_p_values(logs, mean)
    if rounds < FEWEST_FOR_OWN_NOISE:
        return p_values
    # The pairs share jobs and rounds, so their variances are not independent. The degrees of
    # freedom cannot exceed those of the additive model's residuals.
    variance, freedom = _moderate(own, rounds - 1)
    freedom = np.minimum(freedom, (jobs - 1) * (rounds - 1))
    moderated = _two_sided(mean, variance, rounds, freedom)
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

    logs: (jobs, rounds) so far, two or more of each; effect: a difference of logarithms. The
    number is rough, since few rounds show the noise only roughly.
    """
    jobs = len(logs)
    trials = np.arange(2, MOST_TRIALS + 1)
    p_values = _two_sided(
        np.full(len(trials), effect),
        np.full(len(trials), _residual_variance(logs)),
        trials,
        (jobs - 1) * (trials - 1),
    )
    # The smallest p value of all pairs has to pass the first threshold of `holm`.
    enough = p_values < SIGNIFICANCE / (jobs * (jobs - 1) / 2)
    return int(trials[np.argmax(enough)]) if enough.any() else MOST_TRIALS


def welch_p_value(new: np.ndarray, base: np.ndarray) -> float:
    """Two-sided p value of equal means of two separate sets of logarithms, two or more of each.

    Welch's t test, which does not assume equal variances.
    """
    errors = np.array([new.var(ddof=1) / len(new), base.var(ddof=1) / len(base)])
    error = errors.sum()
    parts = (errors**2 / (len(new) - 1, len(base) - 1)).sum()
    freedom = error**2 / parts if parts > 0 else 1.0
    return float(_two_sided(new.mean() - base.mean(), error, 1, freedom))


def _floor_p_values(logs: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """p values with each pair's variance, or with the campaign's if that is larger."""
    *_, jobs, rounds = logs.shape
    of_jobs = _job_variances(logs)
    first, second = pairs(jobs)
    own = of_jobs[..., first] + of_jobs[..., second]
    # A variance of few trials may be small by chance, or because the trials of a job with a fast
    # and a slow mode were all in the same mode. The campaign's variance guards against both.
    if rounds < FEWEST_FOR_OWN_NOISE:
        variance = _early_floor(own, _residual_variance(logs))
    else:
        variance = _late_floor(own, of_jobs)
    return _two_sided(mean, variance, rounds, (jobs - 1) * (rounds - 1))


def _early_floor(own: np.ndarray, campaign: np.ndarray) -> np.ndarray:
    """Variances (..., pairs) if the trials are too few to show the noise of a single job."""
    return np.maximum(OWN_SHARE * own, campaign[..., None])


def _late_floor(own: np.ndarray, of_jobs: np.ndarray) -> np.ndarray:
    """Variances (..., pairs) if each job's noise is known.

    The campaign's variance is twice the mean of the jobs' variances, as the variance of a
    difference of two jobs is the sum of their variances.
    """
    ordered = np.sort(of_jobs, axis=-1)
    others = ordered[..., :-1].mean(axis=-1)
    largest = ordered[..., -1]
    # One noisy job would raise the campaign's variance so far that it hides the differences of all
    # others: its variance is capped. Without the noisiest job, tests would tell equal two-mode jobs
    # apart in 5.2 % of campaigns.
    capped = np.minimum(largest, LARGEST_SHARE * others)
    jobs = of_jobs.shape[-1]
    campaign = 2 * (others * (jobs - 1) + capped) / jobs
    return np.maximum(own, campaign[..., None])


def _residual_variance(logs: np.ndarray) -> np.ndarray:
    """(...): the variance of a difference of two jobs, by the additive model of jobs and rounds."""
    *_, jobs, rounds = logs.shape
    residuals = logs - logs.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=-2, keepdims=True)
    return 2 * (residuals**2).sum(axis=(-2, -1)) / ((jobs - 1) * (rounds - 1))


def _job_variances(logs: np.ndarray) -> np.ndarray:
    """(..., jobs): the variance of each job's trials, without the part that its rounds share."""
    residuals = logs - logs.mean(axis=-1, keepdims=True)
    # This is the median over the jobs: a mean would carry the noise of one job into all others.
    residuals = residuals - np.median(residuals, axis=-2, keepdims=True)
    return residuals.var(axis=-1, ddof=1)


def _moderate(variances: np.ndarray, freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Variances (..., pairs) shrunk towards a common one, and their degrees of freedom.

    An empirical Bayes estimate (Smyth 2004, section 6.2). The more the variances differ beyond
    chance, the less is borrowed from the common one.
    """
    from scipy.special import digamma, polygamma

    # Variances s² with a scaled inverse chi-square prior are distributed as s0² F(d, d0). So the
    # mean and the variance of log s² are
    #     log s0² + digamma(d/2) - log(d/2) - digamma(d0/2) + log(d0/2)
    #     trigamma(d/2) + trigamma(d0/2)
    # Both are solved for the prior: d0 (`prior`) from the second, then s0² (`common`) from the
    # first. If chance alone explains the spread, d0 is as good as infinite: 1e-6 gives 2e6.
    logs = np.log(np.maximum(variances, NO_NOISE))
    center = logs.mean(axis=-1, keepdims=True) - digamma(freedom / 2) + math.log(freedom / 2)
    excess = logs.var(axis=-1, ddof=1, keepdims=True) - polygamma(1, freedom / 2)
    prior = 2 * _invert_trigamma(np.maximum(excess, 1e-6))
    common = np.exp(center + digamma(prior / 2) - np.log(prior / 2))
    return (prior * common + freedom * variances) / (prior + freedom), prior + freedom


def _invert_trigamma(values: np.ndarray) -> np.ndarray:
    """Arguments at which the trigamma function has these values, by Newton's method."""
    from scipy.special import polygamma

    # Smyth 2004, appendix: 1 / trigamma is convex and nearly linear, so Newton's steps on it
    # converge monotonically from this start, for all values.
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
    """p values of a mean of `rounds` differences of that variance, by Student's t.

    If there is no noise, a p value is 0, or 1 if there is no difference.
    """
    from scipy.special import stdtr

    error = np.sqrt(variance / rounds)
    distance = np.abs(mean)
    # Times without any noise would divide by zero; simulated and mocked times have none.
    exact = error <= 1e-12 * distance
    statistic = distance / np.where(exact, 1, error)
    return np.where(exact, distance < 1e-12, 2 * stdtr(freedom, -statistic))
