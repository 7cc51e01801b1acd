"""Confidence intervals and tests compared: which intervals contain the truth, and which tests leave
equal jobs equal?

Simulated campaigns with known answers; see `campaigns` here and in ranks.py for the noises.

    python -m experiments.intervals.run coverage|calibration|few [campaigns]
    python -m experiments.intervals.run identical|unequal|power|serial|compare [campaigns]
"""

import sys
import warnings
from functools import cache

import numpy as np
import scipy.stats

from experiments.intervals import ranks
from fastloop.core import stats

RESAMPLES = 2_000
TRIALS = (5, 7, 10, 20)
KINDS = ("lognormal", "drift", "heavy", "skewed")


def campaigns(kind, count, jobs, trials, seed=0):
    """Logarithms of seconds (campaign, job, round) of equally fast jobs.

    lognormal: 5 % noise. drift: 5 % noise, a drift of +10 % over the rounds, and in each round a
    shock of 10 % that all jobs share. heavy: Student's t with 3 degrees of freedom, and one trial
    in ten takes 30 to 50 % longer. skewed: exponential noise of 10 % in every other job, lognormal
    noise of 2 % in the others.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), jobs, trials])
    shape = (count, jobs, trials)
    if kind == "heavy":
        spikes = rng.uniform(0.3, 0.5, shape) * (rng.random(shape) < 0.1)
        return 0.03 * rng.standard_t(3, shape) + np.log1p(spikes)
    if kind == "skewed":
        skewed = rng.exponential(0.1, shape)
        return np.where(np.arange(jobs)[:, None] % 2, 0.02 * rng.standard_normal(shape), skewed)
    logs = 0.05 * rng.standard_normal(shape)
    if kind == "drift":
        logs += np.linspace(0, 0.1, trials) + 0.1 * rng.standard_normal((count, 1, trials))
    return logs


@cache
def picks(trials):
    return np.random.default_rng(0).integers(trials, size=(RESAMPLES, trials))


def plain_median(row):
    """The percentile bootstrap of the median."""
    return np.percentile(np.median(row[picks(len(row))], axis=1), [2.5, 97.5])


def plain_mean(row):
    """The percentile bootstrap of the mean."""
    return np.percentile(row[picks(len(row))].mean(axis=1), [2.5, 97.5])


def bca(statistic):
    """A function that returns the BCa bootstrap interval of a statistic."""

    def limits(row):
        interval = scipy.stats.bootstrap(
            (row,), statistic, axis=-1, n_resamples=RESAMPLES, method="BCa", rng=0
        ).confidence_interval
        return interval.low, interval.high

    return limits


def bootstrap_t(row):
    """The studentized bootstrap of the mean."""
    resamples = (row - row.mean())[picks(len(row))]
    errors = np.maximum(resamples.std(axis=1, ddof=1), 1e-9 * row.std()) / len(row) ** 0.5
    low, high = np.percentile(resamples.mean(axis=1) / errors, [2.5, 97.5])
    error = row.std(ddof=1) / len(row) ** 0.5
    return row.mean() - high * error, row.mean() - low * error


def student(row):
    """Student's interval of the mean."""
    reach = scipy.stats.t.ppf(0.975, len(row) - 1) * row.std(ddof=1) / len(row) ** 0.5
    return row.mean() - reach, row.mean() + reach


def hettmansperger_sheather(row):
    """Hettmansperger and Sheather's interval of the median."""
    return scipy.stats.mstats.median_cihs(row, 0.05) if len(row) > 5 else (np.min(row), np.max(row))


def median_smoothed(row):
    """The smoothed bootstrap of the median, which fastloop uses."""
    ratio = stats.ratio(np.exp(row), np.ones(len(row)))
    return np.log(ratio.low), np.log(ratio.high)


ESTIMATORS = {
    "median, percentile": (plain_median, np.median),
    "median, BCa": (bca(np.median), np.median),
    "median, order statistics": (hettmansperger_sheather, np.median),
    "**median, smoothed**": (median_smoothed, np.median),
    "mean, percentile": (plain_mean, np.mean),
    "mean, BCa": (bca(np.mean), np.mean),
    "mean, bootstrap-t": (bootstrap_t, np.mean),
    "mean, Student (no bootstrap)": (student, np.mean),
}


def coverage(count):
    """Print each interval's coverage in %, and in brackets its median width in %."""
    for kind in KINDS:
        print(f"\n{kind}\n\n| interval |" + "".join(f" n={n} |" for n in TRIALS))
        print("|---|" + "---|" * len(TRIALS))
        population = campaigns(kind, 200_000, 2, 5, seed=1)
        for name, (limits, location) in ESTIMATORS.items():
            truth = location(population[:, 0] - population[:, 1])
            cells = []
            for trials in TRIALS:
                logs = campaigns(kind, count, 2, trials)
                bounds = np.array([limits(row) for row in logs[:, 0] - logs[:, 1]])
                share = np.mean((bounds[:, 0] <= truth) & (truth <= bounds[:, 1]))
                width = np.median(bounds[:, 1] - bounds[:, 0])
                cells.append(f"{100 * share:.1f} ({100 * width:.0f})")
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def calibration(count):
    """Print the coverage of the smoothed bootstrap in %, for values of its two constants."""
    cases = [(kind, trials) for kind in KINDS[:3] for trials in (5, 7)]
    print("| position, tail |" + "".join(f" {kind} n={n} |" for kind, n in cases))
    print("|---|" + "---|" * len(cases))
    for stats.POSITION, stats.TAIL in ((0, 0), (0, 2), (0.1, 3), (1 / 3, 3)):
        cells = []
        for kind, trials in cases:
            logs = campaigns(kind, count, 2, trials, seed=2)
            bounds = np.array([median_smoothed(row) for row in logs[:, 0] - logs[:, 1]])
            cells.append(f"{100 * np.mean((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)):.1f}")
        print(f"| {stats.POSITION:.2f}, {stats.TAIL} | " + " | ".join(cells) + " |", flush=True)


def few(count):
    """Print the coverage in % with three and with four trials, for the ratio and for the median."""
    print(
        "| noise | trials | ratio, smoothed | median, smoothed | ratio, Student |\n"
        + "|---" * 5
        + "|"
    )
    for kind in KINDS:
        population = campaigns(kind, 200_000, 2, 5, seed=1)
        truths = np.median(population[:, 0] - population[:, 1]), np.median(population[:, 0])
        for trials in (3, 4):
            logs = campaigns(kind, count, 2, trials)
            ratios = logs[:, 0] - logs[:, 1]
            # The true median depends on the drift over this campaign's number of rounds.
            if kind == "drift":
                truths = truths[0], np.median(campaigns(kind, 50_000, 2, trials, seed=1)[:, 0])
            cells = [
                np.mean([low <= truth <= high for low, high in map(limits, rows)])
                for limits, rows, truth in (
                    (median_smoothed, ratios, truths[0]),
                    (median_smoothed, logs[:, 0], truths[1]),
                    (student, ratios, truths[0]),
                )
            ]
            figures = " | ".join(f"{100 * cell:.1f}" for cell in cells)
            print(f"| {kind} | {trials} | {figures} |", flush=True)


if __name__ == "__main__":
    # The BCa bootstrap warns if all resamples are equal.
    warnings.simplefilter("ignore")
    parts = {
        "coverage": coverage,
        "calibration": calibration,
        "few": few,
        "identical": ranks.identical,
        "unequal": ranks.unequal,
        "power": ranks.power,
        "serial": ranks.serial,
        "compare": ranks.compare,
    }
    parts[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 2_000)
