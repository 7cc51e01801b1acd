"""Caveats of series of times: trials that spread or drift, and waits that recur.

Thresholds follow pyperf (std of 10 %), Tukey (fences) and pytorch#19836 (every n-th batch waits).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fastloop.core import stats
from fastloop.core.number_text import significant

UNSTABLE_FRACTION = 0.10
"""A job is unstable from this standard deviation on, as a share of the mean."""
FENCE = 3.0
"""Tukey's outer fence. The inner one (1.5) flags a third of all quiet jobs with five trials."""
DRIFT_P = 0.01
"""A sweep tests each job and benchmark: five trials rise or fall steadily by chance in 2 of 120
cases, so that at 0.05 one of six quickstarts, with ten such tests, would have a drift."""
MIN_FENCE_FRACTION = 0.05
"""Least distance of a fence, as a share of the median: for a very quiet job, Tukey's would be too
tight."""
PERIODIC_FACTOR = 3.0
"""Waits are periodic if one worker's are more than this many times as long as the others'."""
MIN_TURNS = 5
"""Fewest turns of all workers in which a pattern is looked for."""


def trial_caveats(*, seconds: Sequence[float]) -> list[str]:
    """Caveats of one job's trials, in the order of the rounds: unstable, drift, outliers."""
    # Times of zero or infinity have no relative deviation and no trend.
    if len(seconds) < 2 or not all(0 < value < math.inf for value in seconds):
        return []
    return [*_unstable_or_outliers(seconds), *_drift(seconds)]


def wait_caveats(*, wait_s: Sequence[float], num_workers: int) -> list[str]:
    """The caveat of one epoch's waits for batches, in order: worker-periodic.

    Batch i comes from worker i modulo num_workers. If the loop waits longer for the batches of one
    worker, this worker is slow, or all workers finish at the same time. The test for a difference
    between workers is Kruskal and Wallis's (1952).
    """
    # the first turn, in which all workers start, is left out
    turns = len(wait_s) // num_workers - 1 if num_workers > 1 else 0
    if turns < MIN_TURNS:
        return []
    waits = np.asarray(wait_s[num_workers : (turns + 1) * num_workers]).reshape(turns, num_workers)
    # Medians: a single long wait is no pattern.
    medians = np.median(waits, axis=0)
    slow = int(medians.argmax())
    others = float(np.median(np.delete(waits, slow, axis=1)))
    if medians[slow] <= PERIODIC_FACTOR * others or _same_distribution(waits):
        return []
    waits = [significant(1e3 * wait_s, 2) for wait_s in (medians[slow], others)]
    times = f"{waits[0]} ms, the others {waits[1]} ms"
    return [f"worker-periodic: every {_ordinal(num_workers)} batch waits {times}"]


def _unstable_or_outliers(seconds: Sequence[float]) -> list[str]:
    """The caveat of a large standard deviation, or else of outliers."""
    # one caveat for both, as outliers alone can make a job unstable
    share = (stats.std(seconds) or 0.0) / stats.mean(seconds)
    outliers = _count_outliers(seconds)
    if share < UNSTABLE_FRACTION:
        return [f"outliers: {outliers}"] if outliers else []
    cause = f", {outliers} outlier{'s' if outliers > 1 else ''}" if outliers else ""
    return [f"unstable: std {100 * share:.0f} %{cause}"]


def _drift(seconds: Sequence[float]) -> list[str]:
    """The caveat of a trend by Kendall's test (1938), with Theil and Sen's slope as its size."""
    from scipy.stats import kendalltau, theilslopes

    # Of two trials nothing is a trend, and equal trials have no ranks to correlate.
    if len(seconds) < 3 or min(seconds) == max(seconds):
        return []
    rounds = np.arange(len(seconds))
    p_value = np.asarray(kendalltau(rounds, seconds))[1]
    change = theilslopes(seconds, rounds)[0] * rounds[-1] / stats.median(seconds)
    # A trend may be certain and too small to matter.
    if p_value >= DRIFT_P or abs(change) < stats.MINIMUM_EFFECT:
        return []
    return [f"drift: {100 * change:+.0f} % over rounds"]


def _count_outliers(seconds: Sequence[float]) -> int:
    low, median, high = np.percentile(seconds, [25, 50, 75])
    reach = max(FENCE * (high - low), MIN_FENCE_FRACTION * median)
    return sum(value < low - reach or value > high + reach for value in seconds)


def _same_distribution(waits: np.ndarray) -> bool:
    from scipy.stats import kruskal

    # kruskal has no answer if all numbers are equal.
    return waits.min() == waits.max() or float(kruskal(*waits.T)[1]) >= 0.001


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
