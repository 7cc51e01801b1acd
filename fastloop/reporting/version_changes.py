"""Find and judge the changes in time from one version of the code to another.

Each round measures both versions. After some of the rounds, the looks, the changes are tested.
While rounds run, `needs_no_round` says whether they suffice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from fastloop.core import stats
from fastloop.core.auto_trials import DIFFERENCES, LOOKS, MOST_ROUNDS, share_of_look
from fastloop.core.pair_tests import holm, pair_p_values
from fastloop.reporting.comparison import CostChange

NO_SLOWER_BELOW = 1.05
"""A version is no slower if the interval of its ratio, new time / base time, ends below this
factor. If `fail_above` allows a larger factor, that factor replaces this one."""
FEWEST_ROUNDS = LOOKS[0]
"""Minimum number of rounds after which a change is judged."""
Judgement = Literal["slower", "no slower", ""]
"""The judgement on whether the new version is slower; empty: nothing is sure yet."""


class RoundTimes(NamedTuple):
    """Seconds per sample of a benchmark of a job, in both versions.

    Each value is the geometric mean of the trials of a round.
    """

    base: Sequence[float]
    """The values of the base version, in the order of the rounds."""
    new: Sequence[float]
    """The values of the new version, in the order of the rounds."""


def judge_change(change: CostChange, fail_above: float) -> Judgement:
    """Judge the change of one benchmark of one job.

    "slower" means slower beyond noise, and by more than `fail_above` percent.
    """
    if change.is_regression(fail_above):
        return "slower"
    if change.ratio is None:
        return ""
    # A job that is surely slower, but by no more than allowed, counts as no slower.
    is_sure = change.is_slower or change.is_faster
    largest = max(NO_SLOWER_BELOW, 1 + fail_above / 100)
    return "no slower" if is_sure or change.ratio.high < largest else ""


def round_means(seconds: Sequence[float], trials_per_round: int) -> list[float]:
    """The geometric mean of the trials of each round; each round has `trials_per_round` trials.

    >>> round_means([1.0, 4.0, 3.0, 3.0], 2)
    [2.0, 3.0]
    """
    return np.exp(np.log(seconds).reshape(-1, trials_per_round).mean(axis=1)).tolist()


def needs_no_round(
    times: Mapping[tuple[str, str], RoundTimes],
    num_rounds: int,
    trials_per_round: int,
    fail_above: float,
) -> bool:
    """True if no further round is needed: all jobs are judged, or MOST_ROUNDS rounds have run.

    times: by (job, benchmark). num_rounds: number of rounds that have run. trials_per_round: number
    of trials of each version in a round. fail_above: percent by which a job may become slower.

    Tests after every round would find differences between equal versions too often, so changes are
    judged only after the rounds in LOOKS.
    """
    if num_rounds not in LOOKS:
        return False
    changes = find_version_changes(times, trials_per_round)
    return num_rounds == MOST_ROUNDS or all(judge_change(each, fail_above) for each in changes)


def find_version_changes(
    times: Mapping[tuple[str, str], RoundTimes], trials_per_round: int
) -> list[CostChange]:
    """Find the change of each benchmark of each job.

    times: by (job, benchmark). trials_per_round: number of trials of each version in a round. All
    looks together find a difference between two equal versions in at most 3 % of cases, however
    many jobs are compared (Holm 1979).
    """
    logs = {key: np.log(each) for key, each in times.items()}
    rounds = min((each.shape[-1] for each in logs.values()), default=0)
    # Student's t has no value for one round, and before the first look nothing is tested.
    if rounds < FEWEST_ROUNDS:
        return [
            _change(key, each, trials_per_round, is_significant=False)
            for key, each in times.items()
        ]
    p_values = np.array(
        [
            pair_p_values(each, allows_serial=True, trials_per_round=trials_per_round)[0]
            for each in logs.values()
        ]
    )
    significant = holm(p_values, DIFFERENCES * share_of_look(rounds)).tolist()
    return [
        _change(key, times[key], trials_per_round, is_significant=is_significant)
        for key, is_significant in zip(times, significant, strict=True)
    ]


def _change(
    key: tuple[str, str], times: RoundTimes, trials_per_round: int, *, is_significant: bool
) -> CostChange:
    """The change of a benchmark of a job; its ratio is None before the first look.

    key: (job, benchmark). is_significant: True if the change is beyond noise.
    """
    job, benchmark = key
    ratio = None
    if len(times.base) >= FEWEST_ROUNDS:
        look_share = share_of_look(len(times.base))
        ratio = stats.ratio(
            times.new, times.base, look_share=look_share, trials_per_round=trials_per_round
        )
    return CostChange(
        job=job,
        benchmark=benchmark,
        base_cost=stats.median(times.base),
        new_cost=stats.median(times.new),
        ratio=ratio,
        is_significant=is_significant,
    )
