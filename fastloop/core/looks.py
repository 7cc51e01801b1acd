"""`trials=auto`: after which rounds a sweep looks at its trials, and how sure each look has to be.

Whoever tests after every round at 5 % finds a difference between equal jobs sooner or later. Here
the 5 % are spent over all looks (alpha spending, Lan and DeMets 1983): each has a share of its own,
and by Bonferroni's inequality the shares bound all false claims, however the looks depend on each
other. The more rounds, the larger the share (the power family of Kim and DeMets 1987).
experiments/auto_trials/README.md has the false claims of simulated sweeps.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator

AUTO: Literal["auto"] = "auto"


def _check_trials(trials: Any) -> Any:
    """The setting as it is; raises ValueError unless it is a number of trials or `auto`."""
    is_number = isinstance(trials, int) and not isinstance(trials, bool)
    if trials != AUTO and not (is_number and trials >= 1):
        raise ValueError("allowed: auto, or a whole number from 1 on")
    return trials


Trials: TypeAlias = Annotated[int | Literal["auto"], BeforeValidator(_check_trials)]
"""A number of trials, or as many as it takes."""
LOOKS = (4, 5, 6, 8, 10, 13, 16, 20)
"""Rounds after which the trials are tested. Less than four tell too little of jobs whose noise
differs."""
MOST_ROUNDS = LOOKS[-1]
ROUNDS_OF_NO_RANKING = 5
"""Rounds of jobs that nothing is to be decided of, such as a single one."""
AUTO_SECONDS = 120.0
"""Time after which no round begins, unless `seconds` says another."""
DIFFERENCES, TIES = 0.03, 0.02
"""False claims that all looks together may make, of a difference and of a tie."""
SPENDING_POWER = 1.5


def share_of_look(rounds: int) -> float:
    """The share of all false claims that a test after so many rounds may make, or a little less.

    Between two looks, when time is up, the later one's share counts, as it comes no more.
    """
    look = next((each for each in LOOKS if each >= rounds), MOST_ROUNDS)
    earlier = max((each for each in LOOKS if each < look), default=0)
    return _sum_until(look) - _sum_until(earlier)


def most_trials(trials: Trials) -> int:
    """The largest number of trials that the setting allows."""
    return MOST_ROUNDS if trials == AUTO else trials


def fewest_trials(trials: Trials) -> int:
    """The least number of trials that end as the setting asks for."""
    return LOOKS[0] if trials == AUTO else trials


def _sum_until(rounds: int) -> float:
    return (rounds / MOST_ROUNDS) ** SPENDING_POWER
