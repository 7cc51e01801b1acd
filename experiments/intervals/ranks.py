"""Rules that tell jobs apart, tried on simulated campaigns with known answers. The parts of run.py
call this module."""

import numpy as np
from scipy.special import stdtr

from fastloop.core import pair_tests
from fastloop.core.pair_tests import holm, pairs, significant_pairs, welch_p_value

ALPHA = pair_tests.SIGNIFICANCE
JOBS, TRIALS = (2, 5, 10, 20), (3, 4, 5, 10, 20)
AT_ONCE = 500
"""Number of campaigns in memory at once."""
IDENTICAL = ("lognormal", "drift", "heavy", "skewed", "modes .5", "modes .3")
UNEQUAL = ("one x5", "one x20", "half x10")


def campaigns(noise, count, jobs, trials, rng):
    """Logarithms of seconds (campaign, job, round) of equally fast jobs.

    lognormal, drift, heavy: as in run.py. skewed: exponential noise of 10 %. modes p: 1 % noise,
    and with probability p a trial takes 30 % longer. one xk, half xk: 2 % noise, and k times as
    much in one job or in half of the jobs.
    """
    shape = (count, jobs, trials)
    kind, _, value = noise.partition(" ")
    if kind == "heavy":
        spikes = rng.uniform(0.3, 0.5, shape) * (rng.random(shape) < 0.1)
        return 0.03 * rng.standard_t(3, shape) + np.log1p(spikes)
    if kind == "skewed":
        return rng.exponential(0.1, shape)
    normal = rng.standard_normal(shape)
    if kind == "modes":
        return 0.01 * normal + np.log(1.3) * (rng.random(shape) < float(value))
    if kind in ("one", "half"):
        noisy = np.arange(jobs) < (1 if kind == "one" else max(1, jobs // 2))
        return np.where(noisy, 0.02 * float(value[1:]), 0.02)[:, None] * normal
    shocks = np.linspace(0, 0.1, trials) + 0.1 * rng.standard_normal((count, 1, trials))
    return 0.05 * normal + (shocks if kind == "drift" else 0)


def own(logs):
    """The rule until November 2026: a paired t test for each pair, with Holm's correction."""
    first, second = pairs(logs.shape[-2])
    differences = logs[..., second, :] - logs[..., first, :]
    return holm(_student(differences, differences.var(axis=-1, ddof=1), logs.shape[-1] - 1), ALPHA)


def pooled(logs):
    """A rule with one variance for all pairs, the residual variance of the block model, and Holm's
    correction."""
    first, second = pairs(logs.shape[-2])
    residuals = logs - logs.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=-2, keepdims=True)
    freedom = (logs.shape[-2] - 1) * (logs.shape[-1] - 1)
    variance = 2 * (residuals**2).sum(axis=(-2, -1))[..., None] / freedom
    return holm(_student(logs[..., second, :] - logs[..., first, :], variance, freedom), ALPHA)


def moderated(logs):
    """A rule with variances of pairs that are moderated as in Smyth 2004, and nothing else."""
    jobs, rounds = logs.shape[-2:]
    if jobs == 2:
        return own(logs)
    first, second = pairs(jobs)
    differences = logs[..., second, :] - logs[..., first, :]
    variances, freedom = pair_tests._moderate(differences.var(axis=-1, ddof=1), rounds - 1)
    freedom = np.minimum(freedom, (jobs - 1) * (rounds - 1))
    return holm(_student(differences, variances, freedom), ALPHA)


RULES = {"own": own, "pooled": pooled, "moderated": moderated, "**new**": significant_pairs}


def _student(differences, variance, freedom):
    error = np.sqrt(variance / differences.shape[-1])
    return 2 * stdtr(freedom, -np.abs(differences.mean(axis=-1)) / error)


def told(rule, logs):
    """Pairs that the rule tells apart, if their medians also differ by 2 %."""
    first, second = pairs(logs.shape[-2])
    medians = np.median(logs[..., second, :] - logs[..., first, :], axis=-1)
    return rule(logs) & (np.abs(medians) >= np.log(1.02))


def _false_alarms(noise, count, jobs, trials):
    rng = np.random.default_rng([jobs, trials])
    alarms = dict.fromkeys(RULES, 0)
    for start in range(0, count, AT_ONCE):
        logs = campaigns(noise, min(AT_ONCE, count - start), jobs, trials, rng)
        for name, rule in RULES.items():
            alarms[name] += int(told(rule, logs).any(axis=-1).sum())
    return [100 * number / count for number in alarms.values()]


def identical(count, noises=IDENTICAL):
    """Print how often any of equally fast jobs are told apart, in % of campaigns, for each rule and
    each of the five numbers of trials."""
    print(f"| noise | jobs | {' | '.join(RULES)} |\n|---|---|" + "---|" * len(RULES))
    for noise in noises:
        for jobs in JOBS:
            cells = [_false_alarms(noise, count, jobs, trials) for trials in TRIALS]
            columns = [
                " ".join(f"{cell:.1f}" for cell in rule) for rule in zip(*cells, strict=True)
            ]
            print(f"| {noise} | {jobs} | {' | '.join(columns)} |", flush=True)


def unequal(count):
    """Print the same for jobs of unequal noise."""
    identical(count, UNEQUAL)


def power(count):
    """Print how often a factor of 1.5 is found at 10 % noise in ten jobs, in %: campaigns in which
    every slower job is told from a faster one, and pairs."""
    print("| slower jobs | trials | rule | every slower job | a slower job | a pair |")
    print("|---" * 6 + "|")
    first, second = pairs(10)
    for name, slower in (("one", [9]), ("five", range(5, 10)), ("nine", range(1, 10))):
        factors = np.isin(np.arange(10), list(slower)) * np.log(1.5)
        for trials in (3, 4, 5):
            rng = np.random.default_rng(trials)
            logs = factors[:, None] + 0.1 * rng.standard_normal((count, 10, trials))
            real = factors[second] > factors[first]
            for rule in ("own", "pooled", "moderated", "**new**"):
                right = told(RULES[rule], logs) & real
                jobs = np.stack([right[:, second == job].any(axis=-1) for job in slower], axis=-1)
                cells = jobs.all(axis=-1).mean(), jobs.mean(), right[:, real].mean()
                figures = " | ".join(f"{100 * cell:.1f}" for cell in cells)
                print(f"| {name} | {trials} | {rule} | {figures} |", flush=True)
    medians = np.log([8.0, 7.2, 10.9, 8.4, 1.5, 1.4, 1.4, 1.5])
    groups = (pairs(8)[0] < 4) & (pairs(8)[1] >= 4)
    for noise in (0.1, 0.2, 0.3):
        logs = medians[:, None] + noise * np.random.default_rng(0).standard_normal((count, 8, 3))
        cells = [
            f"{name} {100 * told(rule, logs)[:, groups].all(axis=-1).mean():.1f}"
            for name, rule in RULES.items()
        ]
        print(f"\neight jobs, {noise:.0%} noise: all 16 pairs told: {', '.join(cells)}")
    for trials in (3, 5):
        logs = np.log([1, 1, 1, 1.3, 1.3, 1.3])[:, None] + np.array([0.5, *[0.02] * 5])[:, None] * (
            np.random.default_rng(0).standard_normal((count, 6, trials))
        )
        quiet = (pairs(6)[0] > 0) & (pairs(6)[0] < 3) & (pairs(6)[1] >= 3)
        cells = [
            f"{name} {100 * told(rule, logs)[:, quiet].mean():.0f}" for name, rule in RULES.items()
        ]
        print(
            f"\na job of 50 % noise beside five of 2 %, {trials} trials: a pair of the five that "
            f"differs by 30 % told: {', '.join(cells)}"
        )


def serial(count):
    """Print how often five equal jobs with AR(1) noise of 5 % are told apart."""
    for correlation in (0.3, 0.6):
        for trials in (5, 10, 20):
            noise = np.random.default_rng(trials).standard_normal((count, 5, trials))
            for step in range(1, trials):
                fresh = (1 - correlation**2) ** 0.5 * noise[..., step]
                noise[..., step] = correlation * noise[..., step - 1] + fresh
            cells = [
                f"{name} {100 * told(rule, 0.05 * noise).any(axis=-1).mean():.0f}"
                for name, rule in RULES.items()
            ]
            print(f"AR(1) {correlation}, {trials} trials: {', '.join(cells)}", flush=True)


def compare(count):
    """Print how often, between two sets of 20 equal jobs, one job is called slower, in % of
    comparisons."""
    print("| noise | trials | interval alone | and Welch, Holm |\n|---|---|---|---|")
    for noise in ("lognormal", "heavy", "modes .5"):
        for trials in (5, 10, 20):
            rng, alarms = np.random.default_rng(trials), np.zeros(2)
            picks = rng.integers(trials, size=(2, 500, trials))
            for _ in range(count):
                base, new = campaigns(noise, 2, 20, trials, rng)
                medians = np.median(new[:, picks[0]], axis=-1) - np.median(
                    base[:, picks[1]], axis=-1
                )
                above = np.percentile(medians, 2.5, axis=-1) > 0
                p_values = np.array([welch_p_value(*rows) for rows in zip(new, base, strict=True)])
                alarms += above.any(), (above & holm(p_values, 0.05)).any()
            cells = " | ".join(f"{100 * alarm / count:.1f}" for alarm in alarms)
            print(f"| {noise} | {trials} | {cells} |", flush=True)
