"""`trials=auto`: the rounds after which the ranking is tested, and how sure each test has to be.

A test after every round at 5 % finds a difference between equal jobs sooner or later. So the trials
are tested after a few rounds only, the looks, and the 5 % are divided among these (alpha spending,
Lan and DeMets 1983). By Bonferroni's inequality the shares bound all false claims, however the
looks depend on each other.
Later looks have larger shares (the power family of Kim and DeMets 1987). A sweep ends when
`is_decided` in ranking.py says so.
experiments/auto_trials/README.md has the false claims of simulated sweeps.
"""

from __future__ import annotations

from typing import Literal

AUTO: Literal["auto"] = "auto"
"""The value of the setting `trials` with which a sweep continues until its ranking is decided."""
AUTO_SECONDS = 120.0
"""Seconds after which a sweep with trials=auto begins no round; its first LOOKS[0] rounds have
twice that time. The setting `seconds` replaces this value."""
LOOKS = (4, 5, 6, 8, 10, 13, 16, 20)
"""Rounds after which the trials are tested. None precedes the fourth: after three, too little is
known of unequal noise (6 to 8 % of false claims with one noisier job among twenty)."""
MOST_ROUNDS = LOOKS[-1]
DIFFERENCES, TIES = 0.03, 0.02
"""Rates of false claims that all looks together may make, of a difference and of a tie: 5 % in
sum."""
SPENDING_POWER = 2
"""Exponent of the share of false claims that is spent up to a round. With an exponent above 1,
later rounds add more than earlier ones."""


def most_trials(trials: int | Literal["auto"]) -> int:
    """The largest number of trials that the setting allows."""
    return MOST_ROUNDS if trials == AUTO else trials


def fewest_trials(trials: int | Literal["auto"]) -> int:
    """The number of trials before which the setting ends no sweep."""
    return LOOKS[0] if trials == AUTO else trials


def share_of_look(rounds: int) -> float:
    """The share of all false claims that a test after this many rounds may make, if more rounds can
    follow."""
    look = next((each for each in LOOKS if each >= rounds), MOST_ROUNDS)
    return _sum_until(look) - _sum_until(_look_before(look))


def share_of_last_look(rounds: int) -> float:
    """The share of a test after this many rounds when time is up, so that no look can follow.

    All remaining shares could be spent, as the end of the time does not depend on which job is
    faster. But few rounds show little of noise that changes slowly, see
    experiments/auto_trials/README.md. So earlier looks and this one together spend
    `rounds / MOST_ROUNDS`.
    """
    # Before the first look, too little is known of unequal noise to spend more.
    if rounds < LOOKS[0]:
        return share_of_look(rounds)
    return rounds / MOST_ROUNDS - _sum_until(_look_before(rounds))


def _look_before(rounds: int) -> int:
    return max((each for each in LOOKS if each < rounds), default=0)


def _sum_until(rounds: int) -> float:
    return (rounds / MOST_ROUNDS) ** SPENDING_POWER
