"""Rank jobs by their times; jobs tie if no difference between them is proven."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastloop.core.auto_trials import AUTO, LOOKS, MOST_ROUNDS, share_of_last_look, share_of_look
from fastloop.core.bounds import Trials
from fastloop.core.number_text import significant
from fastloop.core.pair_tests import (
    equal_pairs,
    pairs,
    significant_pairs,
    trials_needed,
)
from fastloop.core.stats import MINIMUM_EFFECT, are_positive, log_interval, median

FEWEST_FOR_RANKING = 3
"""Minimum number of trials of each job for ranks: two trials say too little about noise."""
NO_RANK = "-"
"""Text in place of a rank if there is no other job, or too few trials for ranks."""
ROUNDS_OF_NO_RANKING = 5
"""Number of rounds with trials=auto if there is no ranking to decide: for a single job, or for jobs
that can't be ranked. The choice of 5 is not based on a measurement."""
FEWEST_FOR_INTERVALS = 5
"""Minimum number of trials from which the interval of a pair's ratio has to confirm the pair's
test. The interval uses the noise of this pair alone, and the test uses the noise of all jobs. With
fewer trials, the interval is therefore less certain than the test."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranks of jobs, and the number of trials that would separate ties."""

    ranks: dict[str, int]
    """Name of a job -> its rank, fastest job first. A rank is one more than the number of jobs that
    are surely faster, so ranks may be 1, 1, 3. Empty if `undetermined` says why."""
    faster: dict[str, frozenset[str]] = field(default_factory=dict)
    """Name of a job -> the jobs that are surely faster, directly or through a third job. Empty if
    there are no ranks."""
    undetermined: str
    """The reason why there are no ranks, and the number of trials needed, in one line. Empty if
    there are ranks."""
    needed: str
    """Text that says about how many trials of each job would separate the jobs of rank 1 or,
    without ranks, the fastest job and the slowest one. Empty if only one job has rank 1, or if a
    time is not a positive number."""
    order: tuple[str, ...]
    """Names of all jobs by their median seconds, fastest first; jobs without values are last."""
    enough_trials: int = 0
    """About how many trials of each job would separate the jobs of rank 1; 0 if there are no ranks,
    or if only one job has rank 1."""
    equal: tuple[str, ...] = ()
    """The jobs that surely differ by less than 2 % from the first job of the order."""
    undecided: tuple[str, ...] = ()
    """The jobs that are neither surely slower than the first job nor surely as fast, fastest
    first."""
    share: float | None = None
    """Fraction of the 5 % rate of false claims that the tests of this ranking may spend
    (trials=auto, see core/auto_trials.py); None: all of it."""


def rank_jobs(seconds: Mapping[str, Sequence[float]], *, in_looks: bool = False) -> Ranking:
    """Rank jobs by their median seconds, with ties.

    seconds: name of a job -> its times, aligned by round. in_looks: True with trials=auto: the
    rounds went on until the ranking was decided or time was up, see core/auto_trials.py.

    The rank of a job is one more than the number of jobs that are surely faster, directly or
    through a third job. A job is surely faster than another one under three conditions. The median
    over rounds of the paired ratio is at least 1.02; `significant_pairs` tells the two jobs apart;
    and, from five rounds on, the ratio's interval is above 1. All pairs are tested, not only those
    with the first job: the job with the lowest median may be the noisiest, and can then be told
    apart from no other job.

    >>> rank_jobs({"a": [1.0, 1.01, 1.0], "b": [2.0, 2.02, 2.01], "c": [2.01, 2.0, 2.02]}).ranks
    {'a': 1, 'b': 2, 'c': 2}
    """
    if not in_looks:
        return _rank_with_share(seconds, None)
    rounds = min(map(len, seconds.values()), default=0)
    ranking = _rank_with_share(seconds, share_of_look(rounds))
    # These trials don't decide the ranking, so the rounds have ended because time was up.
    if ranking.undecided:
        return _rank_with_share(seconds, share_of_last_look(rounds))
    return ranking


def is_decided(seconds: Mapping[str, Sequence[float]]) -> bool:
    """True if a sweep with trials=auto ends with these trials.

    The sweep ends if the first job is surely faster than each other job or surely as fast, or if
    MOST_ROUNDS rounds have run. A single job has ROUNDS_OF_NO_RANKING rounds. seconds: name of a
    job -> its times, aligned by round.
    """
    rounds = min(map(len, seconds.values()), default=0)
    if len(seconds) < 2:
        return rounds >= ROUNDS_OF_NO_RANKING
    if rounds >= MOST_ROUNDS:
        return True
    # The trials are tested only after the rounds in LOOKS, which share 5 % of false claims. With a
    # test after every round, there would be more.
    if rounds not in LOOKS:
        return False
    ranking = _rank_with_share(seconds, share_of_look(rounds))
    return not ranking.undetermined and not ranking.undecided


def _rank_with_share(seconds: Mapping[str, Sequence[float]], look_share: float | None) -> Ranking:
    """The ranking of the jobs, see `rank_jobs`.

    look_share: fraction of the 5 % rate of false claims that the tests may spend; None: all of it.
    """
    order = tuple(sorted(seconds, key=lambda name: _sort_key(seconds[name])))
    lists = [seconds[name] for name in order]
    if reason := _why_undetermined(lists):
        text = _find_needed(lists).text
        undetermined = f"{reason}; {text}" if text else reason
        return Ranking(
            ranks={}, undetermined=undetermined, needed=text, order=order, share=look_share
        )
    # Noise multiplies times, so noise is added to their logarithms. A ratio becomes a difference.
    logs = {name: np.log(seconds[name]) for name in order}
    faster = _find_faster(logs, look_share)
    equal = _find_equal(logs, look_share)
    ranks = {name: 1 + len(names) for name, names in faster.items()}
    first = [seconds[name] for name in order if ranks[name] == 1]
    needed = _find_needed(first) if len(first) > 1 else _Needed()
    undecided = [name for name in order[1:] if order[0] not in faster[name] and name not in equal]
    return Ranking(
        ranks=ranks,
        faster=faster,
        undetermined="",
        needed=needed.text,
        order=order,
        enough_trials=needed.trials,
        equal=equal,
        undecided=tuple(undecided),
        share=look_share,
    )


def explain_no_ranks(trials: Sequence[Trials]) -> str:
    """The reason why jobs will get no ranks, in one line; empty if they may get some.

    trials: the number of trials of each job.
    """
    fewest = min((each for each in trials if each != AUTO), default=FEWEST_FOR_RANKING)
    if len(trials) < 2 or fewest >= FEWEST_FOR_RANKING:
        return ""
    return (
        f"trials={fewest}: no ranks, and differences that are not proven: {len(trials)} jobs "
        f"are ranked from trials={FEWEST_FOR_RANKING} on, and with more certainty from 5 on"
    )


def _sort_key(values: Sequence[float]) -> float:
    """The median; infinity, which sorts last, for a job without values or with a NaN."""
    # A NaN as the key would make the order undefined.
    middle = median(values) if len(values) else math.inf
    return math.inf if math.isnan(middle) else middle


def _find_equal(logs: dict[str, np.ndarray], look_share: float | None) -> tuple[str, ...]:
    """Names of the jobs that are surely as fast as the first job.

    logs: name of a job -> logarithms of its times, in the order of the medians.
    """
    others = [*logs][1:]
    if not others:
        return ()
    margin = math.log1p(MINIMUM_EFFECT)
    is_equal = equal_pairs(np.stack(list(logs.values())), margin, look_share=look_share)
    # The pairs of the first job with each other job, in the order of these.
    with_first = is_equal[pairs(len(logs))[0] == 0]
    return tuple(name for name, equal in zip(others, with_first, strict=True) if equal)


def _find_faster(
    logs: dict[str, np.ndarray], look_share: float | None
) -> dict[str, frozenset[str]]:
    """Name of a job -> the jobs that are surely faster, see `rank_jobs`.

    logs: name of a job -> logarithms of its times, in the order of the medians.
    """
    names = list(logs)
    if len(names) < 2:
        return dict.fromkeys(names, frozenset())
    lists = np.stack(list(logs.values()))
    is_apart = significant_pairs(lists, look_share)
    first, second = (indices[is_apart] for indices in pairs(len(names)))
    direct: dict[str, list[str]] = {name: [] for name in names}
    # `logs` is in the order of the medians, so the first job of a pair is the faster one.
    for quick, slow in zip(first, second, strict=True):
        if _is_surely_slower(logs[names[slow]] - logs[names[quick]]):
            direct[names[slow]].append(names[quick])
    # The relation is made transitive: if a is surely faster than b and b than c, then a is faster
    # than c, even if their own test is not significant. `names` begins with the fastest job, so
    # the sets of all faster jobs are already complete.
    faster: dict[str, frozenset[str]] = {}
    for name in names:
        faster[name] = frozenset(direct[name]).union(*(faster[other] for other in direct[name]))
    return faster


def _is_surely_slower(log_ratios: np.ndarray) -> bool:
    """True if the second job of a pair is surely slower, by the rules of `rank_jobs`.

    log_ratios: (rounds,), logarithms of the second job's times divided by the first job's. The
    test `significant_pairs` has already told the two jobs apart.
    """
    is_confirmed = len(log_ratios) < FEWEST_FOR_INTERVALS or log_interval(log_ratios)[0] > 0
    return bool(is_confirmed and np.median(log_ratios) >= math.log1p(MINIMUM_EFFECT))


def _why_undetermined(lists: list[Sequence[float]]) -> str:
    """The reason why jobs with these values can't be ranked; empty if they can."""
    if not are_positive(*lists):
        return "a trial's time is not a positive number"
    if not lists or (len(lists) == 1 and len(lists[0])):  # nothing to compare with
        return ""
    fewest, most = min(map(len, lists)), max(map(len, lists))
    if fewest == most >= FEWEST_FOR_RANKING:
        return ""
    if fewest == most == 1:
        return "one trial of each shows no noise, so no difference is proven"
    return f"{fewest} to {most} trials per job" if fewest < most else f"{most} trials"


@dataclass(frozen=True)
class _Needed:
    """About how many trials of each job would tell two jobs apart."""

    text: str = ""
    """The answer in words; empty if there is none."""
    trials: int = 0
    """The number; 0 if it is not known."""


def _find_needed(lists: list[Sequence[float]]) -> _Needed:
    """The trials that would tell the first job and the last apart.

    lists: the times of each job, fastest job first.
    """
    if not are_positive(*lists):
        return _Needed()
    fewest, most = min(map(len, lists)), max(map(len, lists))
    if len(lists) > 1 and fewest == most == 1:
        return _Needed(f"trials={FEWEST_FOR_RANKING} or more ranks them")
    if len(lists) < 2 or fewest < 2:
        return _Needed(f"run the same number of each, {FEWEST_FOR_RANKING} or more")
    # Trials are paired by round, so only the rounds that all jobs have count.
    logs = np.log([values[:fewest] for values in lists])
    seen = abs(float(np.median(logs[-1] - logs[0])))
    smallest = math.log1p(MINIMUM_EFFECT)
    # exp overflows above 709, so the exponent is limited.
    times = f"the difference seen ({significant(math.exp(min(seen, 700)))} times)"
    difference = times if seen >= smallest else "a difference of 2 %"
    trials = trials_needed(logs, max(seen, smallest))
    # Jobs that have fewer trials than others have to catch up.
    least = most if fewest < most else FEWEST_FOR_RANKING
    text = f"about {max(trials, least):,} of each would tell {difference} apart"
    return _Needed(text, trials)
