"""A surrogate of the cost of configurations: the model's prediction, corrected by measurements.

A Gaussian process on the logarithm of cost over that which the model predicts. Configurations that
share settings share their errors, so that a trial of one tells of others: a setting that helps one
loader is tried with the others next. All that run in a round share its noise.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

OF_CHANGE, OF_SETTING, OF_PAIR, OF_ONE = 0.3, 0.3, 0.2, 0.2
"""Weights of what configurations share of the model's error, squared: any change at all, a setting,
two settings together, and nothing.

Each configuration has the same error, SPREAD. Were those with more settings more uncertain, the
first trials would all go to them, and the loader that needs none would not be tried."""
SPREAD = 1.2
"""Standard deviation of the model's error, as a logarithm."""
LEVEL, OF_ROUND = 10.0, 0.15
"""Those of the level that all share, and of what a round adds to all of its trials."""
USUAL_NOISE, ITS_WEIGHT = 0.08, 4
"""Noise of a trial before any was repeated, and the number of repetitions that it counts for."""
MOST_SCALED = 10.0
OPTIMISM = 1.5
"""Standard deviations by which those are preferred of which little is known."""

Costs = Mapping[str, Mapping[int, float]]
"""By name and number of the round."""


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """Logarithms of the costs, up to a common constant."""

    mean: np.ndarray
    covariance: np.ndarray
    noise: float
    """Standard deviation of a trial."""

    def difference_std(self, place: int) -> np.ndarray:
        """Standard deviation of the difference of each configuration to that one."""
        variances = np.diag(self.covariance)
        squares = variances + variances[place] - 2 * self.covariance[place]
        return np.sqrt(np.maximum(squares, 0.0))


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """Configurations, the first of which is the present one."""

    names: Sequence[str]
    changes: Sequence[frozenset[str]]
    """Settings by which each differs from the first."""
    predicted: Sequence[float]
    """Cost of each by the model, in any unit; all alike where there is none."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Index of each name."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def prior(self) -> np.ndarray:
        """(names, names): covariance of the model's errors."""
        settings = sorted(set().union(*self.changes))
        has = np.array([[each in change for each in settings] for change in self.changes], float)
        shared = has.reshape(len(self.names), -1) @ has.reshape(len(self.names), -1).T
        is_change = np.array([float(bool(change)) for change in self.changes])
        any_change = np.outer(is_change, is_change)
        pairs = shared * (shared - 1) / 2
        covariance = OF_SETTING**2 * shared + OF_PAIR**2 * pairs + OF_CHANGE**2 * any_change
        covariance += OF_ONE**2 * np.diag(is_change)
        deviations = np.sqrt(np.diag(covariance))
        deviations[deviations == 0] = 1.0  # of the present one, to which all are compared
        return SPREAD**2 * covariance / np.outer(deviations, deviations)

    def fit(self, costs: Costs) -> Posterior:
        """The posterior of all names, given the costs of those that have run."""
        logs = np.log(np.asarray(self.predicted, float))
        places = np.array([self.places[name] for name in costs])
        values, has_run = _tabulate([*costs.values()])
        errors, noise = has_run * (values - logs[places, None]), estimate_noise(costs)
        rows, columns = np.nonzero(has_run)
        prior = self._scale(places[rows], errors[rows, columns]) * self.prior + LEVEL**2
        # In terms of names and rounds, of which there are fewer than trials.
        count, rounds = has_run.shape
        between = OF_ROUND**2 * np.eye(count + rounds)
        between[:count, :count] = prior[np.ix_(places, places)]
        to_seen = np.vstack([prior[places], np.zeros((rounds, len(logs)))])
        sums = np.concatenate([errors.sum(axis=1), errors.sum(axis=0)])
        counts = np.diag(np.concatenate([has_run.sum(axis=1), has_run.sum(axis=0)]))
        counts[:count, count:], counts[count:, :count] = has_run, has_run.T
        system = counts @ between + noise**2 * np.eye(count + rounds)
        known = np.linalg.solve(system, np.column_stack([sums, counts @ to_seen]))
        mean, covariance = to_seen.T @ known[:, 0], prior - to_seen.T @ known[:, 1:]
        return Posterior(mean=logs + mean, covariance=covariance, noise=noise)

    def choose(
        self,
        posterior: Posterior,
        count: int,
        chosen: Sequence[str] = (),
        excluded: Collection[str] = (),
    ) -> list[str]:
        """The names to run next: the most promising ones, each of which tells something new.

        chosen: of the same round already. excluded: that can't be run.
        """
        covariance, picked = posterior.covariance.copy(), [self.places[each] for each in chosen]
        for place in picked:
            _expect_trial(covariance, place, posterior.noise)
        mean, first = posterior.mean.copy(), len(picked)
        mean[[*picked, *(self.places[each] for each in excluded)]] = np.inf
        while len(picked) < first + count and np.isfinite(mean).any():
            variances = np.diag(covariance) + covariance[0, 0] - 2 * covariance[0]
            bounds = mean - OPTIMISM * np.sqrt(np.maximum(variances, 0.0))
            picked.append(int(np.argmin(bounds)))
            mean[picked[-1]] = np.inf
            _expect_trial(covariance, picked[-1], posterior.noise)
        return [self.names[place] for place in picked[first:]]

    def shortlist(self, count: int) -> list[str]:
        """The most promising names before anything was measured, without the present one."""
        prior = self.prior + LEVEL**2
        mean = np.log(np.asarray(self.predicted, float))
        known = Posterior(mean=mean, covariance=prior, noise=USUAL_NOISE)
        return self.choose(known, count, chosen=self.names[:1])

    def _scale(self, places: np.ndarray, errors: np.ndarray) -> float:
        """Variance of the errors of those that have run, over the expected one; at least 1."""
        own = np.diag(self.prior)[places]
        others = own > 0
        if others.sum() < 2:
            return 1.0
        ratio = np.mean((errors[others] - errors[others].mean()) ** 2 / own[others])
        return float(np.clip(ratio, 1.0, MOST_SCALED))


def make_surrogate(
    names: Sequence[str], changes: Sequence[Sequence[str]], predicted: Sequence[float]
) -> Surrogate:
    """The surrogate of these configurations; changes: the settings by which each differs."""
    settings = [frozenset(change) for change in changes]
    return Surrogate(names=names, changes=settings, predicted=predicted)


def estimate_noise(costs: Costs) -> float:
    """Standard deviation of the logarithm of a trial's cost, from repeated trials."""
    repeated = [each for each in costs.values() if len(each) > 1]
    logs, is_known = _tabulate(repeated)
    squares, free = 0.0, int(is_known.sum()) - sum(logs.shape) + 1
    if repeated and free > 0:
        of_names, of_rounds = is_known.sum(axis=1, keepdims=True), is_known.sum(axis=0)
        for _ in range(10):  # alternately, as rounds and names are not fully crossed
            logs -= is_known * (logs.sum(axis=1, keepdims=True) / of_names)
            logs -= is_known * (logs.sum(axis=0) / of_rounds)
        squares = float((logs**2).sum())
    weight = ITS_WEIGHT + (max(0, free) if repeated else 0)
    return float(np.sqrt((ITS_WEIGHT * USUAL_NOISE**2 + squares) / weight))


def _tabulate(costs: Sequence[Mapping[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of costs (names, rounds), 0 where none is known, and 1 where one is."""
    numbers = sorted({number for each in costs for number in each})
    columns = {number: column for column, number in enumerate(numbers)}
    logs, is_known = np.zeros((2, len(costs), len(columns)))
    for row, each in enumerate(costs):
        places = [columns[number] for number in each]
        logs[row, places], is_known[row, places] = np.log([*each.values()]), 1.0
    return logs, is_known


def _expect_trial(covariance: np.ndarray, place: int, noise: float) -> None:
    """Reduce the covariance by what a trial of that name will tell."""
    column = covariance[:, place].copy()
    covariance -= np.outer(column, column) / (column[place] + noise**2)
