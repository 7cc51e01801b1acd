"""Ranks of jobs, with ties where their trials show no sure difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastloop.core.pair_tests import pairs, significant_pairs, trials_needed
from fastloop.core.stats import MINIMUM_EFFECT, log_interval, median

FEWEST_FOR_RANKING = 3
FEWEST_FOR_INTERVALS = 5
"""Trials from which the interval of a pair's ratio has to confirm their test. Below, that interval
knows less than the test, which sees the noise of all jobs."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranks of jobs, with ties where the rounds show no significant difference."""

    ranks: dict[str, int]
    """Rank by name, in the order of the medians, such as 1, 1, 3: one more than the number of jobs
    that are surely faster. Empty where undetermined."""
    faster: dict[str, frozenset[str]] = field(default_factory=dict)
    """By name, the jobs that are surely faster, directly or through a third; empty with `ranks`."""
    undetermined: str
    """Why there are no ranks and how many trials are needed, in one line; empty with ranks."""
    needed: str
    """About how many trials of each would tell the jobs that share rank 1 (or, without ranks, all)
    apart, in words; empty where one job is first."""
    order: tuple[str, ...]
    """All names by median seconds, fastest first; names without values last."""


def rank_jobs(seconds: Mapping[str, Sequence[float]]) -> Ranking:
    """Rank jobs by median seconds, with ties; the lists are aligned by round.

    The rank of a job is one more than the number of jobs that are surely faster, or faster than
    such a job. Surely faster means that the paired ratio of the two is at least 1.02 (median over
    rounds), that `significant_pairs` tells them apart, and that the ratio's interval is above 1
    (from five rounds on). All pairs count: the job of lowest median may be the noisiest, and be
    told apart from none.
    """
    order = tuple(sorted(seconds, key=lambda name: _sort_key(seconds[name])))
    lists = [seconds[name] for name in order]
    if reason := _why_undetermined(lists):
        needed = _describe_needed(lists)
        undetermined = f"{reason}; {needed}" if needed else reason
        return Ranking(ranks={}, undetermined=undetermined, needed=needed, order=order)
    faster = _find_faster({name: np.log(seconds[name]) for name in order})
    ranks = {name: 1 + len(names) for name, names in faster.items()}
    first = [seconds[name] for name in order if ranks[name] == 1]
    needed = _describe_needed(first) if len(first) > 1 else ""
    return Ranking(ranks=ranks, faster=faster, undetermined="", needed=needed, order=order)


def explain_no_ranks(trials: Sequence[int]) -> str:
    """Why jobs with these numbers of trials will get no ranks, in one line; empty if they may."""
    if len(trials) < 2 or min(trials) >= FEWEST_FOR_RANKING:
        return ""
    return (
        f"trials={min(trials)}: no ranks, and differences that are not proven: {len(trials)} jobs "
        f"are ranked from trials={FEWEST_FOR_RANKING} on, and with more certainty from 5 on"
    )


def _usable(lists: Sequence[Sequence[float]]) -> bool:
    """True where all values are positive and finite, so that they have logarithms."""
    return all(0 < value < math.inf for values in lists for value in values)


def _sort_key(values: Sequence[float]) -> float:
    middle = median(values) if len(values) else math.inf
    return math.inf if math.isnan(middle) else middle


def _find_faster(logs: dict[str, np.ndarray]) -> dict[str, frozenset[str]]:
    """By name the jobs that are surely faster, as described in `rank_jobs`; `logs` is in order."""
    names = list(logs)
    if len(names) < 2:
        return dict.fromkeys(names, frozenset())
    significant = significant_pairs(np.stack(list(logs.values())))
    first, second = (indices[significant] for indices in pairs(len(names)))
    direct: dict[str, list[str]] = {name: [] for name in names}
    for quick, slow in zip(first, second, strict=True):
        if _slower(logs[names[slow]] - logs[names[quick]]):
            direct[names[slow]].append(names[quick])
    faster: dict[str, frozenset[str]] = {}
    for name in names:
        faster[name] = frozenset(direct[name]).union(*(faster[other] for other in direct[name]))
    return faster


def _slower(ratios: np.ndarray) -> bool:
    beyond = len(ratios) < FEWEST_FOR_INTERVALS or log_interval(ratios)[0] > 0
    return bool(beyond and np.median(ratios) >= math.log1p(MINIMUM_EFFECT))


def _why_undetermined(lists: list[Sequence[float]]) -> str:
    """Why jobs with these values can't be ranked; empty where they can."""
    if not _usable(lists):
        return "a trial's time is not a positive number"
    if not lists or (len(lists) == 1 and len(lists[0])):  # nothing to compare with
        return ""
    fewest, most = min(map(len, lists)), max(map(len, lists))
    if fewest == most >= FEWEST_FOR_RANKING:
        return ""
    counts = f"{fewest} to {most} trials per job"
    return counts if fewest < most else f"{most} trial{'' if most == 1 else 's'}"


def _describe_needed(lists: list[Sequence[float]]) -> str:
    """Trials of each that would tell the first of these jobs, fastest first, from the last."""
    if not _usable(lists):
        return ""
    fewest, most = min(map(len, lists)), max(map(len, lists))
    if len(lists) < 2 or fewest < 2:
        return f"run the same number of each, {FEWEST_FOR_RANKING} or more"
    logs = np.log([values[:fewest] for values in lists])
    seen = abs(float(np.median(logs[-1] - logs[0])))
    large = seen >= math.log1p(MINIMUM_EFFECT)
    times = f"the difference seen ({math.exp(min(seen, 700)):.3g} times)"
    difference = times if large else "a difference of 2 %"
    trials = trials_needed(logs, max(seen, math.log1p(MINIMUM_EFFECT)))
    equal = most if fewest < most else FEWEST_FOR_RANKING
    return f"about {max(trials, equal):,} of each would tell {difference} apart"
