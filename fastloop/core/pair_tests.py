"""Test whether the times of two jobs differ, for every pair of jobs in a campaign.

A campaign is a set of jobs that have all run the same number of trials, trial k in round k. The
noise is estimated from all trials of the campaign. Noise multiplies times, so all tests are on
logarithms of times. The rule was chosen by simulation, see experiments/intervals/README.md.

Sources:
- Holm 1979, A simple sequentially rejective multiple test procedure, Scandinavian Journal of
  Statistics 6
- Schuirmann 1987, A comparison of the two one-sided tests procedure and the power approach for
  assessing the equivalence of average bioavailability, Journal of Pharmacokinetics and
  Biopharmaceutics 15
- Smyth 2004, Linear models and empirical Bayes methods for assessing differential expression in
  microarray experiments, Statistical Applications in Genetics and Molecular Biology 3
- Welch 1947, The generalization of Student's problem when several different population variances
  are involved, Biometrika 34
"""

from __future__ import annotations

import math

import numpy as np

from fastloop.core.auto_trials import DIFFERENCES, TIES
from fastloop.core.serial_noise import correlation_weights, independent_series

SIGNIFICANCE = 0.045
"""Level of the tests for ranks. It is below the promised 5 %: at 0.05, the expected share of
campaigns with a false difference is exactly 5 %, so about half of all simulations would find
more."""
OWN_SHARE = 0.9
"""Share of a pair's own variance in `_early_floor`, a compromise between power and unequal noise.
With 1.0, one job of ten that takes 1.5 times as long (10 % noise) is found in 94.8 % of campaigns,
with 0.9 in 96 %. With 0.8, equal jobs of unequal noise are told apart in 10 % of campaigns, with
0.9 in 9 %."""
LARGEST_SHARE = 3
"""Cap on the variance of the noisiest job, as a multiple of the mean variance of the others.
Without a cap, one very noisy job would hide the differences of all others. If the noisiest job were
left out, equal jobs with two modes would be told apart in 5.2 % of campaigns."""
FEWEST_FOR_OWN_NOISE = 5
"""Minimum number of trials from which the noise of a single job or pair is estimated. Fewer trials
show too little of it, as the campaigns with 3 and 4 trials in experiments/intervals show."""
MOST_TRIALS = 10_000
"""Upper bound of `trials_needed`, which tries each number; no sweep runs that many trials."""
NO_NOISE = 1e-20
"""Variances of logarithms below this value are rounding errors."""


def significant_pairs(logs: np.ndarray, look_share: float | None = None) -> np.ndarray:
    """True for each pair of jobs that differs significantly: (..., pairs), in the order of `pairs`.

    logs: (..., jobs, rounds), logarithms of seconds; the leading dimensions are campaigns.
    look_share: None: the number of trials is fixed. If all jobs are equal and equally noisy, and
    their trials are independent, at most 5 % of campaigns then have any pair that differs
    significantly. With trials=auto, the trials are tested after some of the rounds, the looks, and
    `look_share` is the share of all false claims that this look may make, see core/auto_trials.py.
    At most 3 % of campaigns of equal jobs with independent trials then have a pair that differs
    significantly at any look.
    """
    level = SIGNIFICANCE if look_share is None else DIFFERENCES * look_share
    return holm(pair_p_values(logs, allows_serial=look_share is not None), level)


def equal_pairs(logs: np.ndarray, margin: float, *, look_share: float | None) -> np.ndarray:
    """True for each pair of jobs that surely differs by less than `margin`.

    Each pair has two one-sided tests (Schuirmann 1987), corrected for the number of pairs by
    Bonferroni's inequality. margin: a difference of logarithms. logs, look_share: see
    `significant_pairs`; with looks and independent trials, at most 2 % of campaigns have a false
    claim at any look.
    """
    level = SIGNIFICANCE if look_share is None else TIES * look_share
    allows_serial = look_share is not None
    above = pair_p_values(logs, distance_from=margin, allows_serial=allows_serial)
    below = pair_p_values(logs, distance_from=-margin, allows_serial=allows_serial)
    first, second = pairs(logs.shape[-2])
    mean = (logs[..., second, :] - logs[..., first, :]).mean(axis=-1)
    # The p values are two-sided and the tests one-sided, so half of the larger p value counts. A p
    # value is also small if the mean lies far outside of the margin. The second condition excludes
    # such pairs.
    is_sure = np.maximum(above, below) / 2 < level / max(1, len(first))
    return is_sure & (np.abs(mean) < margin)


def pair_p_values(
    logs: np.ndarray,
    *,
    distance_from: float = 0.0,
    allows_serial: bool = False,
    trials_per_round: int = 1,
) -> np.ndarray:
    """Two-sided p values (..., pairs), not corrected for the number of pairs.

    The hypothesis is that the means of a pair differ by `distance_from`, in logarithms. Two jobs
    are compared by a paired t test. If there are more jobs, the p value is the larger one of two
    tests. The first test raises a pair's variance to at least the campaign's. The second test, from
    five rounds on, shrinks the pair's variance towards the variance that all pairs share.

    logs: (..., jobs, rounds), two rounds or more. allows_serial: True: successive trials of a job
    may be correlated, so the p values are averaged over the possible correlations, see
    core/serial_noise.py. trials_per_round: number of successive trials of which each value of
    `logs` is the mean. Such means are less correlated than single trials.
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
    # With two jobs there is no other job that shows the noise, and the paired t test is exact.
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
    """Index of the first job and of the second job of each pair: two int64 arrays (pairs,)."""
    return np.triu_indices(jobs, 1)


def holm(p_values: np.ndarray, level: float) -> np.ndarray:
    """True for each hypothesis (..., tests) that Holm's step-down procedure (1979) rejects.

    The smallest p value is compared with level / tests, the next one with level / (tests - 1), and
    so on, until a p value is not smaller.
    """
    tests = p_values.shape[-1]
    order = np.argsort(p_values, axis=-1)
    thresholds = level / np.arange(tests, 0, -1)
    passed = np.take_along_axis(p_values, order, axis=-1) < thresholds
    rejected = np.zeros(p_values.shape, bool)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(passed, axis=-1), axis=-1)
    return rejected


def trials_needed(logs: np.ndarray, effect: float) -> int:
    """Number of trials of each job that would make a difference of `effect` significant.

    logs: (jobs, rounds), the logarithms so far, two or more of each. effect: a difference of
    logarithms. The number is at most MOST_TRIALS. It is rough, because few rounds show the noise
    only roughly.
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
    """Two-sided p value of the hypothesis that two unpaired sets of logarithms have equal means.

    Each set has two values or more. Welch's t test (1947) does not assume equal variances.
    """
    errors = np.array([new.var(ddof=1) / len(new), base.var(ddof=1) / len(base)])
    error = errors.sum()
    parts = (errors**2 / (len(new) - 1, len(base) - 1)).sum()
    freedom = error**2 / parts if parts > 0 else 1.0
    return float(_two_sided(new.mean() - base.mean(), error, 1, freedom))


def _floor_p_values(logs: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Two-sided p values (..., pairs) with variances that are at least the campaign's.

    mean: (..., pairs), the mean difference of each pair.
    """
    *_, jobs, rounds = logs.shape
    of_jobs = _job_variances(logs)
    first, second = pairs(jobs)
    own = of_jobs[..., first] + of_jobs[..., second]
    # The variance of few trials may be small by chance. It is also small if a job has a fast and a
    # slow mode, and all of its trials were in one mode. The campaign's variance guards against
    # both.
    if rounds < FEWEST_FOR_OWN_NOISE:
        variance = _early_floor(own, _residual_variance(logs))
    else:
        variance = _late_floor(own, of_jobs)
    return _two_sided(mean, variance, rounds, (jobs - 1) * (rounds - 1))


def _early_floor(own: np.ndarray, campaign: np.ndarray) -> np.ndarray:
    """Variances (..., pairs) if the trials are too few to show the noise of a single job.

    own: (..., pairs), the variance of each pair. campaign: (...), the variance of all pairs.
    """
    return np.maximum(OWN_SHARE * own, campaign[..., None])


def _late_floor(own: np.ndarray, of_jobs: np.ndarray) -> np.ndarray:
    """Variances (..., pairs) if the trials show the noise of each job.

    own: (..., pairs). of_jobs: (..., jobs). The variance of a difference of two jobs is the sum of
    their variances, so the campaign's variance is twice the mean of the jobs' variances.
    """
    ordered = np.sort(of_jobs, axis=-1)
    others = ordered[..., :-1].mean(axis=-1)
    largest = ordered[..., -1]
    capped = np.minimum(largest, LARGEST_SHARE * others)
    jobs = of_jobs.shape[-1]
    campaign = 2 * (others * (jobs - 1) + capped) / jobs
    return np.maximum(own, campaign[..., None])


def _residual_variance(logs: np.ndarray) -> np.ndarray:
    """Variance (...) of a difference of two jobs, by the additive model of jobs and rounds.

    The residuals of this model are the logarithms without the effects of their job and round.
    """
    *_, jobs, rounds = logs.shape
    residuals = logs - logs.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=-2, keepdims=True)
    return 2 * (residuals**2).sum(axis=(-2, -1)) / ((jobs - 1) * (rounds - 1))


def _job_variances(logs: np.ndarray) -> np.ndarray:
    """Variance (..., jobs) of each job's trials, without the noise that a round's jobs share."""
    residuals = logs - logs.mean(axis=-1, keepdims=True)
    # The median over the jobs is used: a mean would carry the noise of one job into all others.
    residuals = residuals - np.median(residuals, axis=-2, keepdims=True)
    return residuals.var(axis=-1, ddof=1)


def _moderate(variances: np.ndarray, freedom: int) -> tuple[np.ndarray, np.ndarray]:
    """Variances (..., pairs) shrunk towards a common one, and their degrees of freedom (..., 1).

    The method is empirical Bayes (Smyth 2004, section 6.2). The more the variances differ beyond
    chance, the less they are shrunk. freedom: degrees of freedom of each given variance.
    """
    from scipy.special import digamma, polygamma

    # Variances s² with a scaled inverse chi-square prior are distributed as s0² F(d, d0). So the
    # mean and the variance of log s² are
    #     log s0² + digamma(d/2) - log(d/2) - digamma(d0/2) + log(d0/2)
    #     trigamma(d/2) + trigamma(d0/2)
    # d is `freedom`. The second equation gives d0 (`prior`), then the first gives s0² (`common`).
    # If chance alone explains the spread, d0 is infinite; the bound of 1e-6 makes it 2e6.
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
    """Two-sided p values of means of `rounds` differences, by Student's t distribution.

    variance: of a single difference. freedom: degrees of freedom of this variance. Without noise, a
    p value is 1 if the mean is 0, and 0 otherwise.
    """
    from scipy.special import stdtr

    error = np.sqrt(variance / rounds)
    distance = np.abs(mean)
    # Simulated and mocked times have no noise. A division by an error of zero is avoided.
    exact = error <= 1e-12 * distance
    statistic = distance / np.where(exact, 1, error)
    return np.where(exact, distance < 1e-12, 2 * stdtr(freedom, -statistic))
