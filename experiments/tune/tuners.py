"""Tuners that are replayed on a recording: fastloop's race, and the usual alternatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from experiments.tune.recordings import Recording
from experiments.tune.workloads import YOURS, changes_from_yours
from fastloop.core import stats
from fastloop.tune.race import race
from fastloop.tune.surrogate import Surrogate

TRIALS = 5
"""Trials of every configuration in the exhaustive grid, as many as `fastloop run` has by
default."""


@dataclass(kw_only=True)
class Replay:
    """Trials drawn from a recording. Each of its rounds is a recorded round; they come in random
    order."""

    recording: Recording
    generator: np.random.Generator
    trials: int = 0
    cost_s: float = 0.0
    rounds: int = 0
    """Number of rounds drawn. If there are more than the recording has, recorded rounds are drawn
    again."""
    drawn: list[int] = field(default_factory=list)
    """Index of the recorded round for each round, as far as they have been shuffled."""

    def measure(self, names: Sequence[str], number: int) -> dict[str, float]:
        """Seconds of each of these configurations in a round."""
        drawn = self._draw(number)
        places = [self.recording.places[name] for name in names]
        self.trials += len(names)
        self.cost_s += float(self.recording.cost_s[places].sum())
        seconds = self.recording.seconds[places, drawn]
        return dict(zip(names, seconds.tolist(), strict=True))

    def measure_one(self, name: str, number: int, _room: float) -> float:
        """Seconds of one configuration in a round, with the arguments that the race passes."""
        place, drawn = self.recording.places[name], self._draw(number)
        self.trials += 1
        self.cost_s += float(self.recording.cost_s[place])
        return float(self.recording.seconds[place, drawn])

    def _draw(self, number: int) -> int:
        """Index of the recorded round that takes the place of this round."""
        self.rounds = max(self.rounds, number + 1)
        while len(self.drawn) <= number:
            self.drawn += self.generator.permutation(self.recording.rounds).tolist()
        return self.drawn[number]


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The recommendation of a tuner."""

    name: str
    claims_gain: bool
    """True if the tuner says that it is faster than the user's own configuration."""


Tuner = Callable[[Replay], Chosen]


@cache
def surrogate_of(workload: str, names: tuple[str, ...], predicted: tuple[float, ...]) -> Surrogate:
    """The surrogate of a race, shared by all seeds."""
    changes = changes_from_yours(workload, names)
    return Surrogate(names=names, changes=changes, predicted=predicted)


def by_race(
    share: float, predicted: Mapping[str, float] | None, shares_settings: bool = True
) -> Tuner:
    """fastloop's race with this share of the exhaustive grid's trials.

    predicted: name of a configuration -> seconds that the model predicts; None: all are predicted
    alike. shares_settings: False: a trial tells nothing about other configurations with the same
    settings.
    """

    def tune(replay: Replay) -> Chosen:
        names = replay.recording.names
        costs = tuple(predicted[name] if predicted else 1.0 for name in names)
        surrogate = surrogate_of(replay.recording.workload, names, costs)
        if not shares_settings:
            surrogate = replace(surrogate, changes=[frozenset({each} - {YOURS}) for each in names])
        allowed = share * TRIALS * len(names)
        outcome = race(surrogate, replay.measure_one, lambda: replay.trials / allowed)
        name = outcome.winner if outcome.is_faster else YOURS
        return Chosen(name=name, claims_gain=outcome.is_faster)

    return tune


def grid(replay: Replay) -> Chosen:
    """Run every configuration TRIALS times. The least median wins."""
    names = replay.recording.names
    rounds = [replay.measure(names, number) for number in range(TRIALS)]
    return _least(names, rounds)


def random_search(share: float) -> Tuner:
    """Run random configurations and the user's own TRIALS times each. The least median wins."""

    def tune(replay: Replay) -> Chosen:
        others = [name for name in replay.recording.names if name != YOURS]
        count = max(1, round(share * len(others)) - 1)
        names = [YOURS, *replay.generator.choice(others, count, replace=False).tolist()]
        return _least(names, [replay.measure(names, number) for number in range(TRIALS)])

    return tune


def once_each(count: int) -> Tuner:
    """Run this many random configurations once each, one after the other, as loadtune does."""

    def tune(replay: Replay) -> Chosen:
        others = [name for name in replay.recording.names if name != YOURS]
        names = [YOURS, *replay.generator.choice(others, count - 1, replace=False).tolist()]
        seconds = {name: replay.measure([name], number)[name] for number, name in enumerate(names)}
        best = min(seconds, key=seconds.__getitem__)
        return Chosen(name=best, claims_gain=best != YOURS)

    return tune


def textbook(replay: Replay) -> Chosen:
    """The usual advice: as many workers as cores with the user's own loader, and persistent
    workers."""
    fitting = [name for name in replay.recording.names if "num_workers=2" in name]
    raw = [name for name in fitting if "loader=raw" in name] or fitting
    persistent = [name for name in raw if "persistent_workers=true" in name] or raw
    name = str(replay.generator.choice(persistent)) if persistent else YOURS
    return Chosen(name=name, claims_gain=True)


def _least(names: Sequence[str], rounds: Sequence[dict[str, float]]) -> Chosen:
    medians = {name: stats.median([each[name] for each in rounds]) for name in names}
    best = min(medians, key=medians.__getitem__)
    return Chosen(name=best, claims_gain=best != YOURS)
