"""Statistics of raw values: intervals and paired ratios, as pure functions.

The interval was chosen by simulation, see experiments/intervals/README.md.

Sources:
- Banks 1988, Histospline smoothing the Bayesian bootstrap, Biometrika 75
- Jennison and Turnbull 1989, Interim analyses: the repeated confidence interval approach, Journal
  of the Royal Statistical Society B 51
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from fastloop.core.pair_tests import pair_p_values
from fastloop.core.serial_noise import interval_growth

mean = statistics.fmean
median = statistics.median

MINIMUM_EFFECT = 0.02
"""Jobs that differ by less share a rank: such a gain is not worth changing a loader for."""
FEWEST_FOR_INTERVAL = 3
"""Minimum number of values for an interval; fewer values have only a range."""
RESAMPLES = 10_000
"""Number of resamples of a bootstrap interval; 250 medians then lie beyond each end."""
BOUNDS = (2.5, 97.5)
"""Percentiles at the ends of a 95 % interval."""
POSITION = 0.1
"""Parameter of the positions of the values in the smoothed bootstrap, see `_smooth`. With 0.33, the
intervals of five values would cover only 92 to 93 %."""
TAIL = 3.0
"""Length of the tails of the smoothed bootstrap, as a multiple of the gap between the outermost
value and its neighbour. Without tails, and with a POSITION of 0, the intervals of five values would
cover only 93.0 to 93.8 %."""
TAILS_OF_FEW = {3: 6.0, 4: 5.0}
"""Number of values -> the length that replaces TAIL. With TAIL the intervals of 3 and 4 values
would cover only 91 and 93 %, see experiments/intervals/README.md."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ratio of new times to base times, paired by round."""

    estimate: float
    """Median of the paired ratios."""
    low: float
    """Lower end of the 95 % paired bootstrap interval of that median."""
    high: float
    """Upper end of that interval."""
    p_value: float
    """p value of equality, by a paired t test of the logarithms; not corrected for several pairs.
    With trials=auto, it is divided by the share of the look, and is at most 1. Below three rounds,
    it is 1."""
    is_interval: bool = True
    """False below three rounds: low and high are the lowest and the highest paired ratio."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median with its uncertainty. Unlike a Ratio's, the values may be negative."""

    value: float
    """The median."""
    low: float
    """Lower end of the 95 % interval of the median; the lowest value if there is no interval."""
    high: float
    """Upper end of that interval; the highest value if there is no interval."""
    is_interval: bool
    """False below three values."""


def no_less_than_zero(known: Estimate) -> Estimate:
    """The estimate, cut off at zero: for a quantity that can't be negative, such as a duration."""
    return Estimate(
        value=max(0.0, known.value),
        low=max(0.0, known.low),
        high=max(0.0, known.high),
        is_interval=known.is_interval,
    )


def estimate(values: Sequence[float]) -> Estimate:
    """The median of one or more values with its interval, or below three values with the range."""
    array = np.asarray(values, float)
    is_interval = len(array) >= FEWEST_FOR_INTERVAL
    bounds = log_interval(array) if is_interval else (array.min(), array.max())
    low, high = map(float, bounds)
    return Estimate(value=float(np.median(array)), low=low, high=high, is_interval=is_interval)


def std(values: Sequence[float]) -> float | None:
    """Standard deviation of the values, with ddof=1; None below two values.

    With ddof=0 the standard deviation of 20 values would be 2.5 % lower.
    """
    return statistics.stdev(values) if len(values) > 1 else None


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile of the values, interpolated linearly."""
    return float(np.percentile(values, percent))


def interval(
    values: Sequence[float], *, look_share: float | None = None
) -> tuple[float, float] | None:
    """Ends of the 95 % bootstrap interval of the median; None if there is no interval.

    There is none below three values, or if a value is not a positive number. look_share: see
    `log_interval`.
    """
    if len(values) < FEWEST_FOR_INTERVAL or not are_positive(values):
        return None
    low, high = _exp(*log_interval(np.log(values), look_share=look_share))
    return low, high


def ratio(
    new: Sequence[float],
    base: Sequence[float],
    *,
    look_share: float | None = None,
    trials_per_round: int = 1,
) -> Ratio | None:
    """Ratio of new times to base times, paired by round.

    None if the counts of values differ or are below three, or if a value is not a positive number.
    look_share, trials_per_round: see `log_interval`.
    """
    if len(new) != len(base) or len(new) < FEWEST_FOR_INTERVAL or not are_positive(new, base):
        return None
    logs = _log_ratios(new, base)
    ends = log_interval(logs, look_share=look_share, trials_per_round=trials_per_round)
    estimate, low, high = _exp(np.median(logs), *ends)
    lists = np.stack([np.zeros(len(logs)), logs])
    p_values = pair_p_values(
        lists, allows_serial=look_share is not None, trials_per_round=trials_per_round
    )
    p_value = float(p_values[0])
    # The p value is scaled instead of the level, so that a reader may compare it with 0.05.
    if look_share is not None:
        p_value = min(1.0, p_value / look_share)
    return Ratio(estimate=estimate, low=low, high=high, p_value=p_value)


def ratio_or_range(
    new: Sequence[float], base: Sequence[float], *, look_share: float | None = None
) -> Ratio | None:
    """Ratio of new times to base times with its interval, or below three rounds with its range.

    A range proves nothing, so its p value is 1. None without values, if the counts of values
    differ, or if a value is not a positive number. look_share: see `log_interval`.
    """
    if known := ratio(new, base, look_share=look_share):
        return known
    if not new or len(new) != len(base) or not are_positive(new, base):
        return None
    logs = _log_ratios(new, base)
    estimate, low, high = _exp(np.median(logs), logs.min(), logs.max())
    return Ratio(estimate=estimate, low=low, high=high, p_value=1.0, is_interval=False)


def are_positive(*lists: Sequence[float]) -> bool:
    """True if all values are positive and finite, and therefore have logarithms."""
    return all(0 < value < math.inf for values in lists for value in values)


def _log_ratios(new: Sequence[float], base: Sequence[float]) -> np.ndarray:
    """Logarithms of the paired ratios, float64 (rounds,)."""
    return np.log(np.asarray(new, float)) - np.log(np.asarray(base, float))


def _exp(*logs: float) -> list[float]:
    """The exponentials of the logarithms; infinity for those that are too large."""
    with np.errstate(over="ignore"):  # overflow to infinity is intended
        return np.exp(logs).tolist()


@cache
def _middles(count: int) -> np.ndarray:
    """The two middle values of `count` sorted uniform numbers, float64 (RESAMPLES, 2).

    For an odd count, both are the middle value.
    """
    # With a fixed seed, the intervals of a result file are the same whenever they are computed.
    uniforms = np.sort(np.random.default_rng(0).random((RESAMPLES, count)), axis=1)
    return uniforms[:, [(count - 1) // 2, count // 2]]


@cache
def _middle_bounds(count: int) -> np.ndarray:
    """The percentiles BOUNDS of the middle one of `count` uniform numbers, for an odd count."""
    return np.percentile(_middles(count)[:, 0], BOUNDS)


def log_interval(
    values: np.ndarray, *, look_share: float | None = None, trials_per_round: int = 1
) -> np.ndarray:
    """Ends of the 95 % interval of the median, by a smoothed bootstrap (Banks 1988).

    values: usually logarithms of times, one for each round, in their order. trials_per_round: each
    value is the mean of this many successive trials.

    look_share: None with a fixed number of trials. With trials=auto, the ranking is tested after
    some of the rounds, the looks. `look_share` is the share of all allowed false claims that this
    look may make, see core/auto_trials.py. The interval is then so wide that in 95 % of cases the
    intervals of all looks contain the median (Jennison and Turnbull 1989). It is widened further if
    successive values may be correlated. At a correlation of 0.6 the last interval of a sweep covers
    the ratio of two jobs in 94 % of cases, at 0.9 in 79 %, see experiments/auto_trials/README.md.
    """
    count = len(values)
    shares, knots = _smooth(values)
    # The quantile function is monotonic. So the percentiles of a single middle value follow from
    # those of the uniform middle value, and the resamples need not be mapped. This does not hold
    # for the mean of two middle values.
    if count % 2:
        bounds = np.interp(_middle_bounds(count), shares, knots)
    else:
        bounds = np.percentile(np.interp(_middles(count), shares, knots).mean(axis=1), BOUNDS)
    if look_share is None:
        return bounds
    middle = np.median(values)
    growth = _widening(count, look_share) * interval_growth(
        values, BOUNDS[0] / 100, trials_per_round
    )
    return middle + growth * (bounds - middle)


def _smooth(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distribution from which the smoothed bootstrap draws: probabilities, and their quantiles.

    The distribution is piecewise linear through the values. The k-th of n values is at
    (k - POSITION) / (n + 1 - 2 POSITION). Beyond the outermost values, the distribution continues
    for a multiple of the gap to their neighbours. The plain bootstrap draws observed values only:
    its intervals jump with n, and cover 94 % at n=5 but 88 % at n=7.
    """
    count = len(values)
    knots = np.sort(values)
    tails = TAILS_OF_FEW.get(count, TAIL) * (knots[[0, -1]] - knots[[1, -2]])
    knots = np.concatenate([knots[:1] + tails[:1], knots, knots[-1:] + tails[1:]])
    shares = (np.arange(1, count + 1) - POSITION) / (count + 1 - 2 * POSITION)
    return np.array([0, *shares, 1]), knots


@cache
def _widening(count: int, look_share: float) -> float:
    """The width of an interval that holds at all looks, relative to one for this look alone."""
    from scipy.special import stdtrit

    # The bootstrap has no quantiles that far out, so the factor comes from Student's interval.
    alone, of_look = 1 - BOUNDS[0] / 100, 1 - BOUNDS[0] / 100 * look_share
    return float(stdtrit(count - 1, of_look) / stdtrit(count - 1, alone))
