"""What a reader should know before trusting figures: one short text a flag. Nothing is deleted.

Thresholds after pyperf (std of 10 %), Tukey (fences) and pytorch#19836 (every N-th batch waits).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fastloop.stats import MINIMUM_EFFECT, mean, median, std

UNSTABLE = 0.10
FENCE = 3.0
"""Tukey's outer fence. The inner one (1.5) flags a third of all quiet jobs with five trials."""
OUTLIER = 0.05
"""The least reach of a fence, of the median: those of a very quiet job would be too tight."""
FOREIGN_CORES = 0.5
PERIODIC = 3.0
"""Times as long as the other waits."""
PERIODS = 5
"""Fewest full turns of the workers that a pattern is seen in."""


def of_trials(*, seconds: Sequence[float]) -> list[str]:
    """Flags of one job's trials in the order of the rounds: unstable, drift, outliers."""
    if len(seconds) < 2 or not all(0 < value < math.inf for value in seconds):
        return []
    return [*_unstable(seconds), *_drift(seconds), *_outliers(seconds)]


def of_machine(
    *,
    load_averages: Sequence[float | None],
    own_cores: float,
    num_workers: int,
    torch_threads: int,
    usable_cores: int,
) -> list[str]:
    """Flags of the machine: foreign load, CPU oversubscribed.

    A load average looks back one minute, so `own_cores` is the most that any job of the sweep keeps
    busy. Where workers or threads crowd the cores, own work also waits in the queue that the load
    average counts; then all of it is allowed for.
    """
    crowds = []
    if num_workers > usable_cores:
        crowds += [f"{num_workers} workers"]
    if torch_threads > usable_cores:
        crowds += [f"{torch_threads} torch threads"]
    own = max(own_cores, num_workers + torch_threads) if crowds else own_cores
    found = _foreign([load for load in load_averages if load is not None], own)
    if crowds:
        cores = "1 core" if usable_cores == 1 else f"{usable_cores} cores"
        found += [f"CPU oversubscribed: {' and '.join(crowds)} on {cores}"]
    return found


def of_waits(*, wait_s: Sequence[float], num_workers: int) -> list[str]:
    """The flag of one epoch's waits for batches, in order: worker-periodic.

    Batch i comes from worker i modulo num_workers. Where one place in that turn waits longer than
    the others, the workers finish together or one is slow; either way the loop waits for them.
    The first turn, in which all start, is left out. Kruskal and Wallis (1952) test the places.
    """
    turns = len(wait_s) // num_workers - 1 if num_workers > 1 else 0
    if turns < PERIODS:
        return []
    waits = np.asarray(wait_s[num_workers : (turns + 1) * num_workers]).reshape(turns, num_workers)
    middles = np.median(waits, axis=0)
    slow = int(middles.argmax())
    others = float(np.median(np.delete(waits, slow, axis=1)))
    if middles[slow] <= PERIODIC * others or _alike(waits):
        return []
    times = f"{1e3 * middles[slow]:.2g} ms, the others {1e3 * others:.2g} ms"
    return [f"worker-periodic: every {_ordinal(num_workers)} batch waits {times}"]


def _unstable(seconds: Sequence[float]) -> list[str]:
    share = (std(seconds) or 0.0) / mean(seconds)
    return [f"unstable: std {share:.0%} of mean".replace("%", " %")] if share >= UNSTABLE else []


def _drift(seconds: Sequence[float]) -> list[str]:
    """Kendall's test of a trend (1938), Theil and Sen's slope for its size, of the median."""
    from scipy.stats import kendalltau, theilslopes

    if len(seconds) < 3 or min(seconds) == max(seconds):
        return []
    rounds = np.arange(len(seconds))
    p_value = np.asarray(kendalltau(rounds, seconds))[1]
    change = theilslopes(seconds, rounds)[0] * rounds[-1] / median(seconds)
    if p_value >= 0.05 or abs(change) < MINIMUM_EFFECT:
        return []
    return [f"drift: {100 * change:+.0f} % over rounds"]


def _outliers(seconds: Sequence[float]) -> list[str]:
    low, middle, high = np.percentile(seconds, [25, 50, 75])
    off = max(FENCE * (high - low), OUTLIER * middle)
    far = [value for value in seconds if value < low - off or value > high + off]
    return [f"{len(far)} outlier{'s' if len(far) > 1 else ''}"] if far else []


def _foreign(loads: list[float], own: float) -> list[str]:
    """The typical trial counts, not the worst: one busy minute hits all jobs of a round alike."""
    load = median(loads) if loads else 0.0
    if load - own < FOREIGN_CORES:
        return []
    return [f"foreign load: load average {load:.1f}, own work {own:.1f}"]


def _alike(waits: np.ndarray) -> bool:
    from scipy.stats import kruskal

    return waits.min() == waits.max() or float(kruskal(*waits.T)[1]) >= 0.001


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10)
    return f"{number}{ending or 'th'}"
