"""A race of configurations: the fastest of many, at a fraction of the cost of measuring them all.

Pure but for `measure`, so that it can be replayed on a recorded table. Successive halving: all run
in the first round, and the faster half of those left in each of the next rungs, which have more
rounds. All that run in a round are compared within it, and the present configuration runs in every
one. The winner is then confirmed by rounds that took no part in choosing it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastloop.core import stats
from fastloop.core.stats import MINIMUM_EFFECT, Ratio

Measure = Callable[[Sequence[str], int], Mapping[str, float]]
"""(names, number of the round) -> seconds, or any other cost, of each of them that has run.

A name that is missing in the answer has failed, or there was no time for it; it is out of the race.
"""
SIGNIFICANCE = 0.05
RUNGS = 4
FEWEST_RUNGS = 3
"""Rungs where the budget is too small for all."""
MOST_REPEATS = 3
"""Rounds of the first rung, where the budget allows for as many."""
FEWEST_CONFIRMING = 3
"""Confirming rounds that run even beyond the budget: an interval needs as many."""


@dataclass(frozen=True, kw_only=True)
class RaceRules:
    """How much a race may run."""

    confirming: int = 5
    """Rounds of the winner and the present configuration after the race."""
    reserve: float = 0.3
    """Largest share of the budget that is kept for them."""


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """All that was measured in a race, and its outcome."""

    present: str
    winner: str
    """The fastest in the race; `present` where nothing was faster."""
    seconds: Mapping[str, Mapping[int, float]]
    """By name and number of the round."""
    confirming: tuple[int, ...] = ()
    """Numbers of the rounds that confirm the gain."""
    gain: Ratio | None = None
    """Seconds of `present` over those of the winner in the confirming rounds: 2 is twice as fast.
    None where there was nothing to confirm."""
    not_run: tuple[str, ...] = ()
    """Those for which the budget had no room."""

    @property
    def is_faster(self) -> bool:
        """True where the winner is faster beyond noise, and by enough to matter."""
        gain = self.gain
        if gain is None or gain.estimate < 1 + MINIMUM_EFFECT:
            return False
        return gain.low > 1 and gain.p_value < SIGNIFICANCE

    def compare(self, name: str) -> Ratio | None:
        """Seconds over those of the winner, in the rounds of the race in which both have run."""
        of_name, of_winner = self.seconds.get(name, {}), self.seconds[self.winner]
        shared = [each for each in of_name if each in of_winner and each not in self.confirming]
        lists = [of_name[each] for each in shared], [of_winner[each] for each in shared]
        return stats.ratio_or_range(*lists)

    @property
    def ties(self) -> tuple[str, ...]:
        """The others that the race does not tell apart from the winner."""
        return tuple(name for name in self.seconds if name != self.winner and not self._lost(name))

    def _lost(self, name: str) -> bool:
        ratio = self.compare(name)
        return ratio is None or not ratio.is_interval or ratio.low > 1


@dataclass
class _Race:
    """A race that is being run."""

    present: str
    measure: Measure
    spent: Callable[[], float]
    rules: RaceRules
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    rounds: int = 0
    trials: int = 0

    def run_round(self, names: Sequence[str]) -> list[str]:
        """The names that have run a round, which the present configuration is part of."""
        self.asked |= {*names}
        measured = self.measure([self.present, *names], self.rounds)
        for name, seconds in measured.items():
            self.seconds.setdefault(name, {})[self.rounds] = seconds
        self.rounds += 1
        self.trials += len(measured)
        return [name for name in names if name in measured]

    def price(self) -> float:
        """The share of the budget that a trial has cost, on average."""
        return self.spent() / self.trials

    def trials_left(self) -> float:
        """Trials for which there is room, less those that are kept for confirming."""
        spent = self.spent()
        if spent <= 0:
            return math.inf
        kept = min(self.rules.reserve, 2 * self.rules.confirming * self.price())
        return max(0.0, 1 - spent - kept) / self.price()

    def rank(self, names: Sequence[str]) -> list[str]:
        """The names by their cost in the rounds that all of them have run, the least first."""
        shared = set.intersection(*(set(self.seconds[name]) for name in names))
        logs = np.log([[self.seconds[name][number] for number in sorted(shared)] for name in names])
        scores = np.median(logs - np.median(logs, axis=0), axis=1)
        places: list[int] = np.argsort(scores, kind="stable").tolist()
        return [names[place] for place in places]

    def keep(self, names: Sequence[str], count: int) -> list[str]:
        """The `count` best of the names, less those that are surely slower than the best."""
        ranked = self.rank(names)[:count]
        leader = self.seconds[ranked[0]]
        return [name for name in ranked if not _is_slower(self.seconds[name], leader)]


def race(
    present: str,
    others: Sequence[str],
    measure: Measure,
    spent: Callable[[], float],
    rules: RaceRules = RaceRules(),
) -> RaceResult:
    """The outcome of a race of the present configuration and others, the most promising first.

    spent: the share of the budget that is spent so far, from 0; above 1 nothing begins but what
    confirms a gain. Raises ValueError where the present configuration can't be run.
    """
    run = _Race(present, measure, spent, rules)
    run.run_round([])
    if present not in run.seconds:
        raise ValueError(f"{present}: it has failed")
    rungs = choose_rungs(len(others), run.trials_left())
    left = [*others[: rungs[0][0]]]
    for number, (size, rounds) in enumerate(rungs):
        left = run.keep(left, size) if number and left else left
        for _ in range(rounds):
            if not left or run.trials_left() < len(left) + 1:
                break
            left = run.run_round(left)
    return _finish(run, left, tuple(name for name in others if name not in run.asked))


def plan_rungs(count: int, repeats: int = 1, number: int = RUNGS) -> list[tuple[int, int]]:
    """(how many take part beside the present configuration, rounds) of each rung.

    repeats: rounds of the first rung. number: of the rungs.
    """
    rungs = [(count, repeats)]
    for halvings in range(1, number):
        size = max(min(count, 2), math.ceil(count / 2**halvings))
        rungs.append((size, repeats * 2 ** (halvings - 1)))
    return rungs


def num_trials(rungs: Sequence[tuple[int, int]]) -> int:
    """Trials of rungs, with those of the present configuration."""
    return sum((size + 1) * rounds for size, rounds in rungs)


def choose_rungs(count: int, trials: float) -> list[tuple[int, int]]:
    """Rungs for at most `count` configurations and so many trials.

    All take part if there is room for it, in as many rounds as there is room for; else the first
    ones, in as few rungs as tell the good from the bad.
    """
    plans = [plan_rungs(count, repeats) for repeats in range(MOST_REPEATS, 0, -1)]
    plans += [plan_rungs(count, number=FEWEST_RUNGS)]
    plans += [plan_rungs(size, number=FEWEST_RUNGS) for size in range(count - 1, 0, -1)]
    return next((plan for plan in plans if num_trials(plan) <= trials), [(min(count, 1), 1)])


def _finish(run: _Race, left: Sequence[str], not_run: tuple[str, ...]) -> RaceResult:
    """The outcome, after the rounds that confirm the gain of the best of those left."""
    winner = run.rank([run.present, *(name for name in left if name in run.seconds)])[0]
    first = run.rounds
    while winner != run.present and run.rounds - first < run.rules.confirming:
        has_enough = run.rounds - first >= FEWEST_CONFIRMING
        if (has_enough and run.spent() + 2 * run.price() > 1) or not run.run_round([winner]):
            break
    confirming = tuple(range(first, run.rounds))
    return RaceResult(
        present=run.present,
        winner=winner,
        seconds=run.seconds,
        confirming=confirming,
        gain=_confirmed(run, winner, confirming),
        not_run=not_run,
    )


def _confirmed(run: _Race, winner: str, numbers: Sequence[int]) -> Ratio | None:
    of_winner, of_present = run.seconds[winner], run.seconds[run.present]
    both = [number for number in numbers if number in of_winner and number in of_present]
    if winner == run.present or len(both) < len(numbers):
        return None
    return stats.ratio([of_present[each] for each in both], [of_winner[each] for each in both])


def _is_slower(of_name: Mapping[int, float], of_leader: Mapping[int, float]) -> bool:
    """True where the interval of the paired ratio to the leader is above 1."""
    shared = sorted(of_name.keys() & of_leader.keys())
    ratio = stats.ratio([of_name[each] for each in shared], [of_leader[each] for each in shared])
    return ratio is not None and ratio.low > 1
