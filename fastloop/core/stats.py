"""Statistics of raw values: intervals, paired ratios and rankings, as pure functions.

Interval and test were chosen by simulation, see experiments/intervals/README.md.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

mean = statistics.fmean
median = statistics.median

CONFIDENCE = 0.95
SIGNIFICANCE = 0.045
"""Level of the tests behind ranks. At 0.05 the campaigns of identical jobs that are told apart are
5 %, so that every other sample of them has more."""
MINIMUM_EFFECT = 0.02
"""Jobs that differ by less share a rank: such a gain is no reason to change a loader."""
FEWEST_FOR_INTERVAL = 5
"""The range of four values contains the median in 87.5 % of cases, that of five in 93.75 %."""
FEWEST_FOR_RANKING = 3
MOST_TRIALS = 10_000
"""Upper bound of `trials_needed`."""
RESAMPLES = 10_000
POSITION = 0.1
TAIL = 3.0
"""Parameters of the smoothed bootstrap, see `_interval`; experiments/intervals/README.md has the
coverage with these values."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Ratio of the times of new to those of base, paired by round."""

    estimate: float
    """Median of the paired ratios."""
    low: float
    high: float
    """The 95 % paired bootstrap interval of that median."""
    p_value: float
    """Of the hypothesis that both are equal, by a paired t test of the logarithms; uncorrected."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranks of jobs, with ties where the rounds show no significant difference."""

    ranks: dict[str, int]
    """Rank by name, in the order of the medians, such as 1, 1, 3: one more than the number of jobs
    that are significantly faster. Empty where undetermined."""
    undetermined: str
    """Why there are no ranks and how many trials are needed, in one line; empty with ranks."""
    order: tuple[str, ...]
    """All names by median seconds, fastest first; names without values last."""


def std(values: Sequence[float]) -> float | None:
    """Standard deviation with ddof 1 (ddof 0 understates by 2.6 % at n=20); None below two
    values."""
    return statistics.stdev(values) if len(values) > 1 else None


def percent(fraction: float) -> str:
    """A fraction in percent with two significant digits or more: 0.0042, 0.42, 4.2, 42, 420."""
    value = 100 * fraction
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile of the values, interpolated linearly."""
    return float(np.percentile(values, percent))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % bootstrap interval of the median; None below five values, or where one is not a positive
    number."""
    if len(values) < FEWEST_FOR_INTERVAL or not _usable(values):
        return None
    low, high = _exp(*_interval(np.log(values)))
    return low, high


def ratio(new: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """Ratio of new to base, paired by round; None where their counts differ or are below five, or
    where a value is not a positive number."""
    if len(new) != len(base) or len(new) < FEWEST_FOR_INTERVAL or not _usable(new, base):
        return None
    logs = np.log(np.asarray(new, float)) - np.log(np.asarray(base, float))
    estimate, low, high = _exp(np.median(logs), *_interval(logs))
    return Ratio(estimate=estimate, low=low, high=high, p_value=_p_value(logs))


def ranking(seconds: Mapping[str, Sequence[float]]) -> Ranking:
    """Rank jobs by median seconds, with ties; the lists are aligned by round.

    The rank of a job is one more than the number of jobs that are significantly faster, or faster
    than such a job. Significantly faster means that the paired ratio of the two is at least 1.02
    (median over rounds), that the ratio's interval is above 1 (from five rounds on), and that the
    paired t test of the logarithms is significant at 4.5 % after Holm's correction over all pairs
    of jobs. So a difference counts wherever it is found: the job of lowest median may be the
    noisiest, and be told apart from none.
    """
    order = tuple(sorted(seconds, key=lambda name: _sort_key(seconds[name])))
    undetermined = _why_undetermined([seconds[name] for name in order])
    ranks = {} if undetermined else _ranks({name: np.log(seconds[name]) for name in order})
    return Ranking(ranks=ranks, undetermined=undetermined, order=order)


def trials_needed(
    new: Sequence[float],
    base: Sequence[float],
    *,
    effect: float = MINIMUM_EFFECT,
    comparisons: int = 1,
) -> int | None:
    """The smallest number of trials at which a difference of size `effect` would be significant.

    It is derived from the spread of the paired ratios so far, so it is rough after few rounds; None
    below two rounds. At most 10,000.
    """
    rounds = min(len(new), len(base))
    if rounds < 2 or not _usable(new, base):
        return None
    spread = float(np.std(np.log(new[:rounds]) - np.log(base[:rounds]), ddof=1))
    threshold = SIGNIFICANCE / max(1, comparisons)

    def enough(trials: int) -> bool:
        return _two_sided(math.log1p(effect), spread / math.sqrt(trials), trials) < threshold

    numbers = range(FEWEST_FOR_RANKING, MOST_TRIALS)
    return FEWEST_FOR_RANKING + bisect.bisect_left(numbers, True, key=enough)


def _usable(*lists: Sequence[float]) -> bool:
    """True where all values are positive and finite, so that they have logarithms."""
    return all(0 < value < math.inf for values in lists for value in values)


def _exp(*logs: float) -> list[float]:
    with np.errstate(over="ignore"):  # overflow to infinity is intended
        return np.exp(logs).tolist()


def _sort_key(values: Sequence[float]) -> float:
    middle = median(values) if len(values) else math.inf
    return math.inf if math.isnan(middle) else middle


@cache
def _middles(count: int) -> np.ndarray:
    """(resamples, 2): the two middle values of `count` sorted uniform numbers; for odd counts the
    middle value twice. The same in every call, so that figures are reproducible."""
    uniforms = np.sort(np.random.default_rng(0).random((RESAMPLES, count)), axis=1)
    return uniforms[:, [(count - 1) // 2, count // 2]]


def _interval(values: np.ndarray) -> np.ndarray:
    """Ends of the 95 % percentile interval of the median over resamples of the values.

    A smoothed bootstrap (Banks 1988): it draws from a piecewise linear distribution through the
    values, with the k-th of n at (k - POSITION) / (n + 1 - 2 POSITION), extended beyond the
    outermost values by TAIL times the gap to their neighbours. The plain bootstrap draws observed
    values only: its intervals jump with n, and cover 94 % at n=5 but 88 % at n=7.
    """
    count, knots = len(values), np.sort(values)
    tails = TAIL * (knots[[0, -1]] - knots[[1, -2]])
    knots = np.concatenate([knots[:1] + tails[:1], knots, knots[-1:] + tails[1:]])
    shares = (np.arange(1, count + 1) - POSITION) / (count + 1 - 2 * POSITION)
    medians = np.interp(_middles(count), [0, *shares, 1], knots).mean(axis=1)
    return np.percentile(medians, [2.5, 97.5])


def _p_value(logs: np.ndarray) -> float:
    count = len(logs)
    return _two_sided(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(count), count)


def _two_sided(difference: float, error: float, count: int) -> float:
    """Two-sided p value of a mean difference with that standard error, by Student's t with
    count - 1 degrees of freedom."""
    from scipy.special import stdtr

    if error <= 1e-12 * abs(difference):  # no difference but rounding
        return 1.0 if abs(difference) < 1e-12 else 0.0
    return float(2 * stdtr(count - 1, -abs(difference) / error))


def _ranks(logs: dict[str, np.ndarray]) -> dict[str, int]:
    """Ranks as described in `ranking`; `logs` is in order."""
    significant = _significant_pairs(logs)
    faster: dict[str, set[str]] = {}
    for name, values in logs.items():
        direct = [
            other
            for other in faster
            if (other, name) in significant and _slower(values, logs[other])
        ]
        faster[name] = {*direct}.union(*(faster[other] for other in direct))
    return {name: 1 + len(names) for name, names in faster.items()}


def _slower(logs: np.ndarray, faster: np.ndarray) -> bool:
    ratios = logs - faster
    beyond = len(ratios) < FEWEST_FOR_INTERVAL or _interval(ratios)[0] > 0
    return beyond and float(np.median(ratios)) >= math.log1p(MINIMUM_EFFECT)


def _significant_pairs(logs: dict[str, np.ndarray]) -> set[tuple[str, str]]:
    """Pairs that differ by Holm's step-down procedure (1979): the smallest p value is compared with
    SIGNIFICANCE / number of pairs, the next with SIGNIFICANCE / (number - 1), until one fails."""
    p_values = {
        (faster, slower): _p_value(logs[slower] - logs[faster])
        for faster, slower in itertools.combinations(logs, 2)
    }
    passed = set()
    for left, pair in zip(
        range(len(p_values), 0, -1), sorted(p_values, key=p_values.__getitem__), strict=True
    ):
        if p_values[pair] >= SIGNIFICANCE / left:
            break
        passed.add(pair)
    return passed


def _why_undetermined(lists: list[Sequence[float]]) -> str:
    """Why jobs with these values, fastest first, can't be ranked; empty where they can."""
    if not _usable(*lists):
        return "a trial's time is not a positive number"
    if not lists or (len(lists) == 1 and len(lists[0])):  # nothing to compare with
        return ""
    fewest, most = min(map(len, lists)), max(map(len, lists))
    if fewest == most >= FEWEST_FOR_RANKING:
        return ""
    trials = f"{fewest} to {most} trials per job" if fewest < most else _plural(most, "trial")
    pairs = len(lists) * (len(lists) - 1) // 2
    needed = [trials_needed(b, a, comparisons=pairs) for a, b in itertools.pairwise(lists)]
    if None in needed or not needed:
        advice = f"run the same number of each, {FEWEST_FOR_INTERVAL} or more"
    else:
        enough = max(most, FEWEST_FOR_INTERVAL, *(count for count in needed if count))
        advice = f"about {enough:,} of each would show a difference of 2 %"
    return f"{trials}; {advice}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
