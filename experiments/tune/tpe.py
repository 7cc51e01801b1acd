"""Candidates that Optuna's TPE proposes, for the race and for a tuner that uses TPE alone.

TPE may propose any combination of settings. The recorded configuration that shares most settings
with the proposal is run, and TPE is told its cost.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from experiments.tune.tuners import TRIALS, Chosen, Replay, Tuner
from experiments.tune.workloads import YOURS, changes_from_yours, settings_of
from fastloop.core import stats
from fastloop.tune.race import race
from fastloop.tune.surrogate import Posterior, Surrogate

STARTUP = 5
"""Trials before TPE begins to learn. Optuna's default of ten would be a third of a race."""
LOADER_WEIGHT = 2
"""A shared loader weighs this much, if any other shared setting weighs 1."""


def has_optuna() -> bool:
    """True if the package is installed."""
    return find_spec("optuna") is not None


@dataclass(kw_only=True)
class Proposals:
    """Proposals of TPE, based on the trials of a replay so far."""

    study: Any
    settings: Mapping[str, Mapping[str, str]]
    """Name of a configuration -> value of each setting; all configurations have the same
    settings."""
    distributions: Mapping[str, Any]
    """Name of a setting -> its values, as a distribution of Optuna's."""
    generator: np.random.Generator
    costs: dict[int, dict[str, float]] = field(default_factory=dict)
    """Round -> name of a configuration -> seconds of the trials that TPE has not been told."""
    _asked: list[Any] = field(default_factory=list)

    def add(self, name: str, number: int, seconds: float) -> None:
        """Note the seconds of a trial."""
        self.costs.setdefault(number, {})[name] = seconds

    def propose(self, excluded: Collection[str]) -> str:
        """The configuration to run next, which is none of the excluded ones."""
        trial = self.study.ask(dict(self.distributions))
        self._asked.append(trial)
        values = trial.params
        shared = {
            name: sum(
                LOADER_WEIGHT if setting == "loader" else 1
                for setting, value in own.items()
                if value == values[setting]
            )
            for name, own in self.settings.items()
            if name not in excluded
        }
        most = max(shared.values())
        return str(self.generator.choice([name for name, each in shared.items() if each == most]))

    def tell(self, relative_to: str | None) -> None:
        """Tell TPE the trials since the last call. Their times are relative to this configuration's
        in the same round; None: they are absolute."""
        from optuna.trial import TrialState, create_trial

        # A proposed combination is not the one that was run, so it gets no cost.
        for trial in self._asked:
            self.study.tell(trial, state=TrialState.FAIL)
        for costs in self.costs.values():
            base_s = costs[relative_to] if relative_to else 1.0
            for name, seconds in costs.items():
                told = create_trial(
                    params=dict(self.settings[name]),
                    distributions=dict(self.distributions),
                    value=math.log(seconds / base_s),
                )
                self.study.add_trial(told)
        self._asked.clear()
        self.costs.clear()


@dataclass(frozen=True, kw_only=True)
class ProposedByTpe(Surrogate):
    """A surrogate for which TPE chooses the next configurations; the rest is that of the race."""

    proposals: Proposals

    def choose(
        self,
        posterior: Posterior,  # noqa: ARG002 - TPE has its own
        count: int,
        chosen: Sequence[str] = (),
        excluded: Collection[str] = (),
    ) -> list[str]:
        """The names to run next; see Surrogate."""
        self.proposals.tell(self.names[0])
        picked: list[str] = []
        for _ in range(count):
            taken = {*chosen, *excluded, *picked}
            if len(taken) < len(self.names):
                picked.append(self.proposals.propose(taken))
        return picked


def race_by_tpe(share: float) -> Tuner:
    """fastloop's race among TPE's candidates, with this share of the exhaustive grid's trials."""

    def tune(replay: Replay) -> Chosen:
        names, proposals = replay.recording.names, start(replay)
        surrogate = ProposedByTpe(
            names=names,
            changes=changes_from_yours(replay.recording.workload, names),
            predicted=[1.0] * len(names),
            proposals=proposals,
        )

        def measure(name: str, number: int, room: float) -> float:
            seconds = replay.measure_one(name, number, room)
            proposals.add(name, number, seconds)
            return seconds

        allowed = share * TRIALS * len(names)
        outcome = race(surrogate, measure, lambda: replay.trials / allowed)
        name = outcome.winner if outcome.is_faster else YOURS
        return Chosen(name=name, claims_gain=outcome.is_faster)

    return tune


def tpe_alone(share: float) -> Tuner:
    """TPE's proposals one after the other, as in a study of Optuna's. The least median wins."""

    def tune(replay: Replay) -> Chosen:
        names, proposals = replay.recording.names, start(replay)
        seconds: dict[str, list[float]] = {}
        name, number = YOURS, 0
        while replay.trials < int(share * TRIALS * len(names)):
            cost = replay.measure_one(name, number, math.inf)
            seconds.setdefault(name, []).append(cost)
            proposals.add(name, number, cost)
            # No configuration is measured beside it, so its time is absolute.
            proposals.tell(None)
            name, number = proposals.propose({YOURS}), number + 1
        medians = {name: stats.median(each) for name, each in seconds.items()}
        best = min(medians, key=medians.__getitem__)
        return Chosen(name=best, claims_gain=best != YOURS)

    return tune


def start(replay: Replay) -> Proposals:
    """The proposals of a study that has no trials yet."""
    import optuna
    from optuna.distributions import CategoricalDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=int(replay.generator.integers(2**31)),
            multivariate=True,
            constant_liar=True,
            n_startup_trials=STARTUP,
        )
    settings = settings_of(replay.recording.workload, replay.recording.names)
    values = {name: sorted({each[name] for each in settings.values()}) for name in settings[YOURS]}
    return Proposals(
        study=optuna.create_study(sampler=sampler),
        settings=settings,
        distributions={name: CategoricalDistribution(each) for name, each in values.items()},
        generator=replay.generator,
    )
