"""`trials=auto`: rounds are run until the ranking of the jobs is decided, or time is up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastloop.core.alpha_spending import AUTO, LOOKS, MOST_ROUNDS, share_of_look
from fastloop.core.bounds import Trials
from fastloop.core.ranking import rank_with_share

ROUNDS_OF_NO_RANKING = 5
"""Rounds of a single job, or of jobs that can't be ranked: there is nothing to decide."""


def most_trials(trials: Trials) -> int:
    """The largest number of trials that the setting allows."""
    return MOST_ROUNDS if trials == AUTO else trials


def fewest_trials(trials: Trials) -> int:
    """The setting may end a sweep only after this many trials."""
    return LOOKS[0] if trials == AUTO else trials


def is_decided(seconds: Mapping[str, Sequence[float]]) -> bool:
    """True if trials=auto ends with these trials: the first job is surely faster than each other
    job or surely as fast, or as many rounds as are allowed have run.

    seconds: each job's times by its name, aligned by round.
    """
    rounds = min(map(len, seconds.values()), default=0)
    if len(seconds) < 2:
        return rounds >= ROUNDS_OF_NO_RANKING
    if rounds >= MOST_ROUNDS:
        return True
    # Only the rounds in LOOKS are tested: a test after every round would exceed the 5 % of false
    # claims that the looks share.
    if rounds not in LOOKS:
        return False
    ranking = rank_with_share(seconds, share_of_look(rounds))
    return not ranking.undetermined and not ranking.undecided
