"""A race of configurations: the fastest of many, at a fraction of the cost of measuring them all.

Pure but for `measure`, so that it can be replayed on a recorded table. Each round runs the present
configuration, the leader, and those that promise most by the model and by what was measured so far:
one trial of many first, more of those that are not told apart from the leader. The winner is then
confirmed by rounds that took no part in choosing it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastloop.core import stats
from fastloop.core.stats import MINIMUM_EFFECT, Ratio
from fastloop.explain.tune.surrogate import Posterior, Surrogate

Measure = Callable[[Sequence[str], int], Mapping[str, float]]
"""(names, number of the round) -> seconds, or any other cost, of each of them that has run.

A name that is missing in the answer has failed, or there was no time for it; it is out of the race.
"""
SIGNIFICANCE = 0.05
FEWEST_CONFIRMING = 3
"""An interval needs as many rounds."""
SMALLEST_ROUND, LARGEST_ROUND = 3, 8
"""Configurations in a round beside the present one."""
ROUNDS = 6
"""About the number of rounds that the budget is divided into."""
SURE = 2.0
"""Standard deviations by which a difference is beyond noise."""
WORTH = 0.03
"""Share of the cost by which another configuration must be better to be worth a search."""
LEAST_CHANCE = 0.02
"""The race goes on while the chance that there is such a configuration is larger."""


@dataclass(frozen=True, kw_only=True)
class RaceRules:
    """Sizes of a race."""

    confirming: int = 5
    """Rounds of the winner and the present configuration after the race."""
    reserve: float = 0.3
    """Largest share of the budget that is kept for more of them than an interval needs."""
    finishing: int = 0
    """Trials for which there must be room after these rounds."""


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
    """Those that did not run: there was no room, or they promised too little."""
    ties: tuple[str, ...] = ()
    """The others that have run and are not told apart from the winner."""

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


@dataclass(kw_only=True)
class _Race:
    """A race that is being run."""

    surrogate: Surrogate
    measure: Measure
    spent: Callable[[], float]
    rules: RaceRules
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    prices: list[float] = field(default_factory=list)
    """Share of the budget that a trial has cost, by round."""

    @property
    def present(self) -> str:
        return self.surrogate.names[0]

    @property
    def rounds(self) -> int:
        return len(self.prices)

    def run_round(self, names: Sequence[str]) -> list[str]:
        """The names that have run a round, which the present configuration is part of."""
        before, asked = self.spent(), [*dict.fromkeys((self.present, *names))]
        measured = self.measure(asked, self.rounds)
        for name, seconds in measured.items():
            self.seconds.setdefault(name, {})[self.rounds] = seconds
        for name in set(asked) - set(measured):
            self.failed.add(name)
            self.seconds.pop(name, None)
        self.prices.append((self.spent() - before) / max(1, len(measured)))
        return [name for name in names if name in measured]

    @property
    def price(self) -> float:
        """The share of the budget that a trial costs; the median, as some rounds write stores."""
        return max(1e-9, stats.median(self.prices))

    def trials_left(self) -> float:
        """Trials for which there is room, less those that are kept for confirming."""
        rules, price = self.rules, self.price
        wished = min(rules.reserve, (2 * rules.confirming + rules.finishing) * price)
        kept = max(wished, (2 * FEWEST_CONFIRMING + rules.finishing) * price)
        return max(0.0, 1 - self.spent() - kept) / price

    def fit(self) -> Posterior:
        """The posterior of all configurations."""
        return self.surrogate.fit(self.seconds)

    def find_leader(self, posterior: Posterior) -> str:
        """The fastest of those that have run."""
        return min(self.seconds, key=lambda name: posterior.mean[self.surrogate.places[name]])

    def is_open(self, posterior: Posterior) -> bool:
        """True while a configuration may be better than the leader by enough to matter."""
        return sum(self.find_chances(posterior).values()) > LEAST_CHANCE

    def find_chances(self, posterior: Posterior) -> dict[str, float]:
        """Of the others that have not failed, the chance of each to be better by that much."""
        leader = self.find_leader(posterior)
        place = self.surrogate.places[leader]
        gains = posterior.mean[place] - posterior.mean - WORTH
        scores = gains / np.maximum(posterior.difference_std(place), 1e-9)
        return {
            name: 0.5 * math.erfc(-score / math.sqrt(2))
            for name, score in zip(self.surrogate.names, scores, strict=True)
            if name != leader and name not in self.failed
        }

    def find_ties(self, posterior: Posterior) -> tuple[str, ...]:
        """Names that have run and are not told apart from the leader."""
        places, leader = self.surrogate.places, self.find_leader(posterior)
        differences = posterior.mean - posterior.mean[places[leader]]
        bounds = differences - SURE * posterior.difference_std(places[leader])
        others = (name for name in self.seconds if name != leader)
        return tuple(name for name in others if bounds[places[name]] <= 0)

    def choose_round(self, posterior: Posterior, count: int) -> list[str]:
        """The names of the next round."""
        chosen = [*dict.fromkeys((self.present, self.find_leader(posterior)))]
        chances, count = self.find_chances(posterior), count - len(chosen) + 1
        least = LEAST_CHANCE / len(self.surrogate.names)
        hopeless = {name for name in self.surrogate.names if chances.get(name, 0.0) < least}
        return [*chosen[1:], *self.surrogate.choose(posterior, count, chosen, hopeless)]


def race(
    surrogate: Surrogate,
    measure: Measure,
    spent: Callable[[], float],
    rules: RaceRules = RaceRules(),
) -> RaceResult:
    """The outcome of a race of the surrogate's configurations.

    spent: the share of the budget that is spent so far, from 0; nothing begins for which there is
    no room, by what trials have cost. Raises ValueError where the first configuration can't be run.
    """
    run = _Race(surrogate=surrogate, measure=measure, spent=spent, rules=rules)
    run.run_round([])
    if run.present not in run.seconds:
        raise ValueError(f"{run.present}: it has failed")
    while run.present in run.seconds and run.trials_left() >= 2 and run.is_open(run.fit()):
        room = run.trials_left()
        count = min(max(SMALLEST_ROUND, int(room / ROUNDS)), LARGEST_ROUND, int(room) - 1)
        if not run.run_round(run.choose_round(run.fit(), count)):
            break
    if run.present not in run.seconds:
        raise ValueError(f"{run.present}: it has failed")
    return _finish(run)


def _finish(run: _Race) -> RaceResult:
    """The outcome, after the rounds that confirm the gain of the leader."""
    posterior, first = run.fit(), run.rounds
    winner, ties = run.find_leader(posterior), run.find_ties(posterior)
    known = {*run.seconds, *run.failed}
    seconds = {name: dict(each) for name, each in run.seconds.items()}
    confirmed: list[Mapping[str, float]] = []
    while winner != run.present and run.rounds - first < run.rules.confirming:
        after = run.spent() + (2 + run.rules.finishing) * run.price
        if run.rounds - first >= FEWEST_CONFIRMING and after > 1:
            break
        if not run.run_round([winner]) or run.present not in run.seconds:
            break
        number = run.rounds - 1
        confirmed.append({name: run.seconds[name][number] for name in (run.present, winner)})
        for name, cost in confirmed[-1].items():
            seconds[name][number] = cost
    is_whole = run.rounds - first == len(confirmed)
    return RaceResult(
        present=run.present,
        winner=winner,
        seconds=seconds,
        confirming=tuple(range(first, first + len(confirmed))),
        gain=_find_gain(confirmed, run.present, winner) if is_whole else None,
        not_run=tuple(name for name in run.surrogate.names if name not in known),
        ties=ties,
    )


def _find_gain(confirmed: Sequence[Mapping[str, float]], present: str, winner: str) -> Ratio | None:
    return stats.ratio([each[present] for each in confirmed], [each[winner] for each in confirmed])
