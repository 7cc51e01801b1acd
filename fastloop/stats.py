"""Pure functions from raw values to figures. No figure is kept that these can't recompute.

Interval and test were chosen by simulation: experiments/intervals.md has the losers too.
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
MINIMUM_EFFECT = 0.02
"""Jobs that are closer than this are never told apart: nobody changes a loader for less."""
FEWEST_FOR_INTERVAL = 5
"""The range of four values holds their median in 87.5 % of cases, that of five in 93.75 %."""
FEWEST_FOR_RANKING = 3
MOST_TRIALS = 10_000
"""Where the search for a number of trials ends."""
RESAMPLES = 10_000
POSITION = 0.1
TAIL = 3.0
"""Of the smoothed bootstrap, calibrated: experiments/intervals.md says what is then covered."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """How long new takes where base takes 1, over rounds."""

    estimate: float
    """Median of the paired ratios."""
    low: float
    high: float
    """The 95 % paired bootstrap interval of that median."""
    p_value: float
    """That new and base are alike, by a paired t test of the logarithms; uncorrected."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Who is fastest, as far as the rounds can tell."""

    ranks: dict[str, int]
    """1, 1, 3: jobs that can't be told apart share a rank. In order; empty where undetermined."""
    undetermined: str
    """Empty, or why there are no ranks, in one line, and how many trials would do."""
    order: tuple[str, ...]
    """All names by median seconds, fastest first; those without values last."""


def std(values: Sequence[float]) -> float | None:
    """Standard deviation with ddof 1 (ddof 0 understates by 2.6 % at n=20); None below two
    values."""
    return statistics.stdev(values) if len(values) > 1 else None


def percent(fraction: float) -> str:
    """Two digits, or as many as stand before the point: 0.0042, 0.42, 4.2, 42, 420."""
    shown = 100 * fraction
    return f"{shown:.2g}" if shown < 99.5 else f"{shown:.0f}"


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which that many percent of the values lie, interpolated linearly."""
    return float(np.percentile(values, percent))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % bootstrap interval of the median over trials; None below five values, or where one is
    not a positive number."""
    if len(values) < FEWEST_FOR_INTERVAL or not _usable(values):
        return None
    low, high = _exp(*_interval(np.log(values)))
    return low, high


def ratio(new: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """How new compares to base, paired by round; None where numbers are unequal, below five, or
    where a value is not a positive number."""
    if len(new) != len(base) or len(new) < FEWEST_FOR_INTERVAL or not _usable(new, base):
        return None
    logs = np.log(np.asarray(new, float)) - np.log(np.asarray(base, float))
    estimate, low, high = _exp(np.median(logs), *_interval(logs))
    return Ratio(estimate=estimate, low=low, high=high, p_value=_p_value(logs))


def ranking(seconds: Mapping[str, Sequence[float]]) -> Ranking:
    """Ranks by median seconds with honest ties; the lists are aligned by round.

    Going through the jobs from the fastest on, a job gets a rank of its own only where it is told
    apart from the first job of the group before it; otherwise it shares that group's rank. Told
    apart: its paired ratio to that job is at least 1.02 (median over rounds), the ratio's interval
    lies above 1 (from five rounds on, where there is one), and the paired t test of the logarithms
    is significant at 5 % after Holm's correction over all pairs of jobs: all, and not only those
    looked at, because the leader is chosen from the same values.
    """
    order = tuple(sorted(seconds, key=lambda name: _place(seconds[name])))
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
    """The fewest trials with which a measured difference of that size would be significant.

    From the spread of the paired ratios so far, so with few rounds it is a rough figure; None where
    two rounds are not there yet to tell a spread. At most 10,000 is said.
    """
    rounds = min(len(new), len(base))
    if rounds < 2 or not _usable(new, base):
        return None
    spread = float(np.std(np.log(new[:rounds]) - np.log(base[:rounds]), ddof=1))
    threshold = (1 - CONFIDENCE) / max(1, comparisons)

    def enough(trials: int) -> bool:
        return _two_sided(math.log1p(effect), spread / math.sqrt(trials), trials) < threshold

    numbers = range(FEWEST_FOR_RANKING, MOST_TRIALS)
    return FEWEST_FOR_RANKING + bisect.bisect_left(numbers, True, key=enough)


def _usable(*lists: Sequence[float]) -> bool:
    """Only positive, finite values have logarithms."""
    return all(0 < value < math.inf for values in lists for value in values)


def _exp(*logs: float) -> list[float]:
    with np.errstate(over="ignore"):  # what is too large for a float is infinite
        return np.exp(logs).tolist()


def _place(values: Sequence[float]) -> float:
    middle = median(values) if len(values) else math.inf
    return math.inf if math.isnan(middle) else middle


@cache
def _middles(count: int) -> np.ndarray:
    """The middle two (odd counts: one, twice) of so many sorted uniform numbers, a row a resample;
    the same in every call, so figures repeat."""
    uniforms = np.sort(np.random.default_rng(0).random((RESAMPLES, count)), axis=1)
    return uniforms[:, [(count - 1) // 2, count // 2]]


def _interval(values: np.ndarray) -> np.ndarray:
    """Ends of the 95 % percentile interval of the median over resamples of the values.

    A smoothed bootstrap (Banks 1988): it draws from the distribution that runs in straight lines
    through the values, the k-th of n at (k - a) / (n + 1 - 2 a), and on beyond the outermost for
    some times the gap to their neighbours. The plain one draws only values that were seen: its
    intervals jump with n, and cover 94 % at n=5 but 88 % at n=7.
    """
    count, known = len(values), np.sort(values)
    tails = TAIL * (known[[0, -1]] - known[[1, -2]])
    known = np.concatenate([known[:1] + tails[:1], known, known[-1:] + tails[1:]])
    shares = (np.arange(1, count + 1) - POSITION) / (count + 1 - 2 * POSITION)
    medians = np.interp(_middles(count), [0, *shares, 1], known).mean(axis=1)
    return np.percentile(medians, [2.5, 97.5])


def _p_value(logs: np.ndarray) -> float:
    count = len(logs)
    return _two_sided(float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(count), count)


def _two_sided(difference: float, error: float, count: int) -> float:
    """P value of a mean difference with that standard error, Student's t with count - 1."""
    from scipy.special import stdtr

    if error <= 1e-12 * abs(difference):  # nothing but rounding differs
        return 1.0 if abs(difference) < 1e-12 else 0.0
    return float(2 * stdtr(count - 1, -abs(difference) / error))


def _ranks(logs: dict[str, np.ndarray]) -> dict[str, int]:
    """The walk that `ranking` describes; the names come in order."""
    apart = _significant_pairs(logs)
    ranks: dict[str, int] = {}
    leader = next(iter(logs), "")
    for number, name in enumerate(logs, 1):
        if (leader, name) in apart and _slower(logs[name], logs[leader]):
            leader = name
        ranks[name] = number if name == leader else ranks[leader]
    return ranks


def _slower(logs: np.ndarray, leader: np.ndarray) -> bool:
    ratios = logs - leader
    beyond = len(ratios) < FEWEST_FOR_INTERVAL or _interval(ratios)[0] > 0
    return beyond and float(np.median(ratios)) >= math.log1p(MINIMUM_EFFECT)


def _significant_pairs(logs: dict[str, np.ndarray]) -> set[tuple[str, str]]:
    """Pairs that differ at 5 % by Holm's step-down (1979): the smallest p value against 5 % over
    the number of pairs, the next against one pair fewer, until one fails."""
    p_values = {
        (one, other): _p_value(logs[other] - logs[one])
        for one, other in itertools.combinations(logs, 2)
    }
    passed = set()
    for left, pair in zip(
        range(len(p_values), 0, -1), sorted(p_values, key=p_values.__getitem__), strict=True
    ):
        if p_values[pair] >= (1 - CONFIDENCE) / left:
            break
        passed.add(pair)
    return passed


def _why_undetermined(lists: list[Sequence[float]]) -> str:
    """Why jobs with these values, fastest first, can't be ranked; empty where they can."""
    if not _usable(*lists):
        return "a trial's time is not a positive number"
    if not lists or (len(lists) == 1 and len(lists[0])):  # nothing to be compared to
        return ""
    fewest, most = min(map(len, lists)), max(map(len, lists))
    if fewest == most >= FEWEST_FOR_RANKING:
        return ""
    trials = f"{fewest} to {most} trials a job" if fewest < most else _plural(most, "trial")
    pairs = len(lists) * (len(lists) - 1) // 2
    needed = [trials_needed(b, a, comparisons=pairs) for a, b in itertools.pairwise(lists)]
    if None in needed or not needed:
        advice = f"the same number of each, {FEWEST_FOR_INTERVAL} or more, would do"
    else:
        enough = max(most, FEWEST_FOR_INTERVAL, *(count for count in needed if count))
        advice = f"about {enough:,} of each would show a difference of 2 %"
    return f"{trials}; {advice}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
