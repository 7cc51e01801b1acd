"""Race configurations, to find the fastest of many at a fraction of the cost of measuring all.

`race` runs rounds, in which each chosen configuration gets one trial, and returns a `RaceResult`.
Each round runs the present configuration (the user's own), the leader (the fastest so far), and the
configurations that look most promising to the surrogate, a model of the costs that learns from the
trials. First many configurations get one trial each. Then the configurations that can't be told
apart from the leader get more.

Fresh rounds then confirm the gain of the winner. The rounds of the race would promise too much,
because a race picks the luckiest of many configurations.

A trial begins only if the budget has room for the trial and for the rounds that must follow. The
race judges this by prices: the price of a trial is the share of the budget that it takes, as
expected from the trials so far.

A race acts only by its arguments `measure` and `spent`, so a race can be replayed on recorded
costs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fastloop.core import stats
from fastloop.core.stats import MINIMUM_EFFECT, Ratio
from fastloop.tune.surrogate import Posterior, Surrogate

Measure = Callable[[str, int, float], float | None]
"""Measures one trial: (name of the configuration, number of the round, share of the budget that the
trial may take) -> the trial's cost in seconds, see objective.py. None if the trial has failed; the
configuration then gets no further trial. Raises NoRoomError if a trial of the present configuration
was stopped because it took more than its share."""
YOURS = "yours"
"""Name of the present configuration."""
FEWEST_CONFIRMING = 3
"""Minimum number of rounds that confirm a gain: fewer give no confidence interval."""
SMALLEST_ROUND, LARGEST_ROUND = 3, 8
"""Minimum and maximum number of configurations in a round, besides the present one. A round has
fewer if there is no room for the minimum."""
USUAL_ROUNDS = 6
"""Approximate number of rounds into which the budget is divided."""
PRICE_MARGIN = 1.2
"""Room that is kept for the rounds that must follow, relative to the cost of trials so far."""
SURE_DEVIATIONS = 2.0
"""A configuration is surely slower than the leader if their difference is greater than this many
standard deviations."""
LEAST_LOG_GAIN = 0.03
"""Smallest gain that is worth a search, as the logarithm of a ratio of costs: about 3 %."""
LEAST_CHANCE = 0.02
"""The race goes on while the chance that any configuration is better than the leader by more than
LEAST_LOG_GAIN is greater than this."""
LEAST_OPEN_GAIN = 0.1
"""Smallest gain that leaves a race undecided if the fresh rounds show the gain, but do not confirm
it. The rounds then differ too much, as on a busy machine. Chosen by hand: such a gain is worth more
time, and is five times the smallest gain that is reported."""
SIGNIFICANCE = 0.05
"""A gain is confirmed only if its p value is below this."""


class NoRoomError(Exception):
    """The budget has no room for a trial of the present configuration."""


class PresentFailedError(Exception):
    """A trial of the present configuration has failed."""


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """The costs that were measured in a race, and its outcome."""

    present: str
    """Name of the present configuration."""
    winner: str
    """The fastest configuration in the race; `present` if nothing was faster."""
    seconds: Mapping[str, Mapping[int, float]]
    """The cost of each trial in seconds, see objective.py, by name and number of the round.
    LoopTuning.to_json writes the field under this name."""
    confirming: tuple[int, ...] = ()
    """Numbers of the rounds that confirm the gain."""
    gain: Ratio | None = None
    """Seconds of `present` relative to the winner's in the confirming rounds: 2 is twice as fast.
    None if there was nothing to confirm, if the winner has failed in these rounds, or if there are
    fewer than FEWEST_CONFIRMING of them."""
    not_run: tuple[str, ...] = ()
    """The configurations that did not run, for lack of room or because they promised too little."""
    ties: tuple[str, ...] = ()
    """Other configurations that have run and are not surely slower than the winner."""
    is_cut: bool = False
    """True if the budget ended before a gain could be confirmed: nothing is decided."""
    is_unfinished: bool = False
    """True if a race with a larger budget would go on from here, with further trials."""

    @property
    def is_faster(self) -> bool:
        """True if the winner is faster beyond noise, and by enough to matter."""
        gain = self.gain
        # A gain below 2 % is not worth a change, however sure it is.
        if gain is None or gain.estimate < 1 + MINIMUM_EFFECT:
            return False
        return gain.low > 1 and gain.p_value < SIGNIFICANCE

    @property
    def is_undecided(self) -> bool:
        """True if the budget ended too early, or if an open gain remains.

        A gain is open if the fresh rounds show LEAST_OPEN_GAIN or more, but do not confirm it.
        """
        is_open = self.gain is not None and self.gain.estimate >= 1 + LEAST_OPEN_GAIN
        return self.is_cut or (is_open and not self.is_faster)

    def compare(self, name: str) -> Ratio | None:
        """The cost of a configuration relative to the winner's, in rounds of the race with both.

        2 means that the configuration costs twice as much. None if no round has both.
        """
        # The confirming rounds are left out, because only two configurations ran in them.
        of_name, of_winner = self.seconds.get(name, {}), self.seconds[self.winner]
        shared = [each for each in of_name if each in of_winner and each not in self.confirming]
        return stats.ratio_or_range(
            [of_name[each] for each in shared], [of_winner[each] for each in shared]
        )


@dataclass(frozen=True, kw_only=True)
class RaceRules:
    """The work for which a race keeps room at its end, and the configurations to try first."""

    confirming: int = 5
    """Number of rounds of the winner and the present configuration after the race."""
    reserve: float = 0.3
    """Maximum share of the budget that is kept for work after the race. It may be exceeded only for
    FEWEST_CONFIRMING rounds and the winner's passes."""
    finishing: int = 0
    """Number of passes of the winner for which room is kept after the confirming rounds. A pass is
    an epoch outside of trials, such as one that compares data. If `reserve` allows it, room is kept
    for the same number of passes of the present configuration."""
    first: tuple[str, ...] = ()
    """Names of the configurations about which the predictions tell least. They fill up to half of
    each round, in this order, until each has run once."""


@dataclass(kw_only=True)
class _Prices:
    """The shares of the budget that trials have cost, and that further trials will cost."""

    present: str
    """Name of the present configuration."""
    known: dict[str, list[float]] = field(default_factory=dict)
    """The share that each trial so far has cost, by name of the configuration."""

    def add(self, name: str, share: float) -> None:
        """Add the price of a trial that has run."""
        self.known.setdefault(name, []).append(share)

    def expect(self, name: str) -> float:
        """Approximate price of the configuration's next trial."""
        own = self.known.get(name, [])
        if name == self.present or len(own) > 1:
            return stats.median(own[-3:]) if own else 0.0
        # A first trial may have included writing a store, which later trials do not repeat. So its
        # price is limited to the usual one, or to the present configuration's if that is greater.
        if own:
            return min(own[0], max(self.usual, self.expect(self.present)))
        return self.usual

    @property
    def usual(self) -> float:
        """The usual price of a trial: the median over the latest trial of each configuration."""
        return max(1e-9, stats.median([each[-1] for each in self.known.values()] or [0.0]))

    def expect_round(self, leader: str) -> float:
        """Approximate price of a round of the present configuration and the leader."""
        return self.expect(self.present) + self.expect(leader)


@dataclass(kw_only=True)
class _Race:
    """A race while it runs: its trials so far, and the choice of the next ones."""

    surrogate: Surrogate
    measure: Measure
    spent: Callable[[], float]
    """Returns the share of the budget that is spent so far."""
    rules: RaceRules
    prices: _Prices
    costs_s: dict[str, dict[int, float]] = field(default_factory=dict)
    """The costs so far in seconds, by name and number of the round."""
    failed: set[str] = field(default_factory=set)
    """Names of the other configurations with a trial that has failed."""
    rounds: int = 0
    """Number of rounds so far."""
    is_cut: bool = False
    """True if the budget was too small for a whole race. Rounds that confirm a gain then run only
    as far as there is room."""
    is_over: bool = False
    """True once a trial of the present configuration was stopped: no further trial runs."""

    @property
    def present(self) -> str:
        """Name of the present configuration."""
        return self.surrogate.names[0]

    def run_round(self, names: Sequence[str], kept: float | None) -> list[str]:
        """Run a round of the present configuration and `names`, as far as there is room.

        Returns those of `names` for which a cost was measured. kept: the share of the budget that
        must be left after the round; None: earlier rounds have kept room for this one.
        """
        # The order is random, so that noise that drifts within a round favours nobody. The number
        # of the round is the seed, so that a resumed race repeats the order.
        order = [*dict.fromkeys((self.present, *names))]
        number = self.rounds
        random.Random(number).shuffle(order)
        self.rounds += 1
        measured = [name for name in order if self._run_trial(name, number, kept)]
        return [name for name in names if name in measured]

    def run_chosen(self, posterior: Posterior, count: int, kept: float) -> list[str]:
        """Run a round of the most promising names, as `run_round` does.

        If all chosen names fail, the next ones take their places in the same round.
        """
        failed = len(self.failed)
        ran = self.run_round(self.choose_round(posterior, count), kept)
        while not ran and len(self.failed) > failed:
            failed = len(self.failed)
            names = self.choose_round(posterior, count)
            ran = [name for name in names if self._run_trial(name, self.rounds - 1, kept)]
        return ran

    def _run_trial(self, name: str, number: int, kept: float | None) -> bool:
        """Run a trial if there is room for the trial; returns True if its cost was measured.

        Raises PresentFailedError if it is a trial of the present configuration, and has failed.
        """
        before = self.spent()
        room = self._find_room(name, number, kept)
        if room < self.prices.expect(name) or self.is_over:
            return False
        try:
            cost = self.measure(name, number, room)
        except NoRoomError:
            # No trial can be compared without the present configuration. The trials so far are
            # kept, and a larger budget can resume the race.
            self.is_over = self.is_cut = True
            return False
        self.prices.add(name, self.spent() - before)
        if cost is not None:
            self.costs_s.setdefault(name, {})[number] = cost
            return True
        if name == self.present:
            raise PresentFailedError(name)
        self.failed.add(name)
        self.costs_s.pop(name, None)
        return False

    def _find_room(self, name: str, number: int, kept: float | None) -> float:
        """The share of the budget that a trial may take."""
        room = 1 - self.spent()
        # Two kinds of trials may exceed the budget by a little. One is a trial of a round that
        # confirms, without which all trials so far would be wasted. The other is the trial of the
        # present configuration, with which the other trials of the round are compared.
        if kept is None or name == self.present:
            return max(room, 2 * self.prices.expect(name))
        # The present configuration must still run in this round if it has not.
        has_run = number in self.costs_s.get(self.present, {})
        return room - kept - (0.0 if has_run else self.prices.expect(self.present))

    def share_to_keep(self, leader: str) -> float:
        """The share of the budget to keep for the rounds that confirm this leader's gain.

        It includes the passes after these rounds.
        """
        rules = self.rules
        both = self.prices.expect_round(leader)
        wished = min(rules.reserve, PRICE_MARGIN * (rules.confirming + rules.finishing) * both)
        return max(wished, FEWEST_CONFIRMING * both + rules.finishing * self.prices.expect(leader))

    def fit(self) -> Posterior:
        """Fit the posterior of all configurations to the costs so far."""
        return self.surrogate.fit(self.costs_s)

    def find_leader(self, posterior: Posterior) -> str:
        """Find the fastest configuration that has run."""
        return min(self.costs_s, key=lambda name: posterior.mean[self.surrogate.places[name]])

    def is_open(self, posterior: Posterior) -> bool:
        """True while a configuration may be better than the leader by enough to matter."""
        # The sum of the chances is an upper bound of the chance that any name is better.
        return sum(self.find_chances(posterior).values()) > LEAST_CHANCE

    def find_chances(self, posterior: Posterior) -> dict[str, float]:
        """Estimate each configuration's chance to beat the leader by more than LEAST_LOG_GAIN.

        Returns the chances by name, without the leader and without configurations that have failed.
        """
        leader = self.find_leader(posterior)
        place = self.surrogate.places[leader]
        gains = posterior.mean[place] - posterior.mean - LEAST_LOG_GAIN
        scores = gains / np.maximum(posterior.difference_std(place), 1e-9)
        return {
            name: 0.5 * math.erfc(-score / math.sqrt(2))
            for name, score in zip(self.surrogate.names, scores.tolist(), strict=True)
            if name != leader and name not in self.failed
        }

    def find_ties(self, posterior: Posterior) -> tuple[str, ...]:
        """Find the names that have run and are not surely slower than the leader."""
        places = self.surrogate.places
        leader = self.find_leader(posterior)
        differences = posterior.mean - posterior.mean[places[leader]]
        bounds = differences - SURE_DEVIATIONS * posterior.difference_std(places[leader])
        others = (name for name in self.costs_s if name != leader)
        return tuple(name for name in others if bounds[places[name]] <= 0)

    def choose_round(self, posterior: Posterior, count: int) -> list[str]:
        """Choose at most `count` names for the next round, besides the present configuration.

        The first is the leader, unless the present configuration leads. Then come names of
        `rules.first`, then the most promising ones.
        """
        chances = self.find_chances(posterior)
        chosen = [*dict.fromkeys((self.present, self.find_leader(posterior)))]
        # The present configuration runs in every round, beyond `count`.
        count += 1 - len(chosen)
        # A name with a chance below `least` is hopeless. If all names were hopeless, the sum of
        # their chances would be below LEAST_CHANCE, and the race would have ended.
        least = LEAST_CHANCE / len(self.surrogate.names)
        hopeless = {name for name in self.surrogate.names if chances.get(name, 0.0) < least}
        known = {*chosen, *hopeless, *self.costs_s}
        first = [name for name in self.rules.first if name not in known][: count // 2]
        chosen += first
        others = self.surrogate.choose(posterior, count - len(first), chosen, hopeless)
        return [*chosen[1:], *others]


def race(
    surrogate: Surrogate,
    measure: Measure,
    spent: Callable[[], float],
    rules: RaceRules = RaceRules(),
) -> RaceResult:
    """Race the surrogate's configurations, and confirm the gain of the winner.

    spent: returns the share of the budget that is spent so far. No trial begins without room for
    it, with two exceptions: trials of the present configuration in a round that has begun, and the
    first FEWEST_CONFIRMING rounds that confirm a gain. Raises PresentFailedError if the present
    configuration can't be run, and NoRoomError if not even its first trial has room.
    """
    prices = _Prices(present=surrogate.names[0])
    run = _Race(surrogate=surrogate, measure=measure, spent=spent, rules=rules, prices=prices)
    # A round of the present configuration alone shows the price of a trial.
    run.run_round([], 0.0)
    if not run.costs_s:
        raise NoRoomError
    _search(run)
    if len(run.costs_s) == 1:
        _try_one(run)
    return _finish(run)


def _search(run: _Race) -> None:
    """Run rounds while there is room, and while a configuration may be better than the leader."""
    while True:
        posterior = run.fit()
        kept = run.share_to_keep(run.find_leader(posterior))
        # `room` is the number of trials of other configurations for which there is room.
        room = (1 - run.spent() - kept - run.prices.expect(run.present)) / run.prices.usual
        if room < 1 or not run.is_open(posterior):
            return
        count = min(max(SMALLEST_ROUND, int(room / USUAL_ROUNDS)), LARGEST_ROUND, int(room))
        if not run.run_chosen(posterior, count, kept):
            return


def _try_one(run: _Race) -> None:
    """Run the most promising configuration once, if it may be faster and there is room for it.

    Called after a search in which only the present configuration has got a cost: there was no room
    for others, all others that ran have failed, or none may be faster.
    """
    posterior = run.fit()
    run.is_cut = run.is_open(posterior)
    if run.is_cut and run.spent() + run.prices.expect(run.present) + run.prices.usual <= 1:
        run.run_chosen(posterior, 1, 0.0)


def _finish(run: _Race) -> RaceResult:
    """Run the rounds that confirm the leader's gain, and return the outcome of the race."""
    # The winner and its ties are chosen before the fresh rounds, which must not affect the choice.
    posterior = run.fit()
    first = run.rounds
    winner, ties = run.find_leader(posterior), run.find_ties(posterior)
    known = {*run.costs_s, *run.failed}
    costs_s = {name: dict(each) for name, each in run.costs_s.items()}
    # A race is unfinished if the budget lacked room for some configuration that promises a gain, or
    # for some confirming round.
    is_unfinished = run.is_cut or run.is_open(posterior)
    confirmed = _confirm(run, winner) if winner != run.present else []
    is_unfinished |= winner != run.present and len(confirmed) < run.rules.confirming
    for number, of_round in enumerate(confirmed, first):
        for name, cost in of_round.items():
            costs_s[name][number] = cost
    return RaceResult(
        present=run.present,
        winner=winner,
        seconds=costs_s,
        confirming=tuple(range(first, first + len(confirmed))),
        gain=None if winner in run.failed else _find_gain(confirmed, run.present, winner),
        not_run=tuple(name for name in run.surrogate.names if name not in known),
        ties=ties,
        is_cut=run.is_cut and len(confirmed) < FEWEST_CONFIRMING,
        is_unfinished=is_unfinished,
    )


def _confirm(run: _Race, winner: str) -> list[Mapping[str, float]]:
    """Run fresh rounds of the winner and the present configuration.

    Returns the costs by name, for each round in which both have run.
    """
    confirmed: list[Mapping[str, float]] = []
    finishing = run.rules.finishing * run.prices.expect(winner)
    while len(confirmed) < run.rules.confirming:
        # Room was kept for FEWEST_CONFIRMING rounds, unless the race was cut; further ones run only
        # if the passes after them have room as well.
        is_extra = run.is_cut or len(confirmed) >= FEWEST_CONFIRMING
        number = run.rounds
        if is_extra and run.spent() + run.prices.expect_round(winner) + finishing > 1:
            break
        ran = run.run_round([winner], finishing if is_extra else None)
        if not ran or run.is_over:
            break
        confirmed.append({name: run.costs_s[name][number] for name in (run.present, winner)})
    return confirmed


def _find_gain(confirmed: Sequence[Mapping[str, float]], present: str, winner: str) -> Ratio | None:
    """Cost of the present configuration relative to the winner's, in the rounds that confirm."""
    return stats.ratio([each[present] for each in confirmed], [each[winner] for each in confirmed])
