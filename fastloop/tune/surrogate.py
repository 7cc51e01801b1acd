"""Predict the costs of configurations by a surrogate: a model's predictions, corrected by trials.

The model is explain's or, if it was not measured, a rough expectation (expected_cost.py). The
surrogate is a Gaussian process of the model's error, the logarithm of cost / prediction. The errors
of configurations with common settings are correlated, so a trial of one configuration also tells
about others: if a setting helps one loader, it is tried with the other loaders next. The trials of
a round also share an error, the level of the round. race.py fits the surrogate after each round,
and chooses the next round by it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

# All constants are chosen by hand. The study experiments/tune tests them together; no simulation of
# other values is recorded. They decide only which trials run, because fresh trials confirm each
# gain: a poor value costs trials, but does not make the answer wrong (docs/statistics.md).

# The model's error of a configuration is a sum of independent components. Only the ratios of the
# next four standard deviations count, because the sum is scaled to ERROR_STD.
CHANGE_STD = 0.3
"""Relative standard deviation of the component that all changed configurations share: the model may
misjudge the present configuration, with which all others are compared."""
SETTING_STD = 0.3
"""Relative standard deviation of the component of each setting. The larger the value, the more a
trial says about other configurations with the same setting."""
PAIR_STD = 0.2
"""Relative standard deviation of the component of each pair of settings. It is smaller than
SETTING_STD, because most of the effect of two settings is the sum of their own effects."""
OWN_STD = 0.2
"""Relative standard deviation of the component of each configuration alone. It keeps configurations
uncertain until they have run themselves."""
ERROR_STD = 1.2
"""Standard deviation of the whole error of any changed configuration, as a logarithm: a prediction
is typically too high or too low by a factor of exp(1.2) = 3.3."""
LARGEST_VARIANCE_RATIO = 10.0
"""Maximum factor by which ERROR_STD**2 is raised if the errors in trials are larger. Without a
limit, one extreme cost would leave the predictions without weight."""
LEVEL_STD = 10.0
"""Standard deviation of the level that all costs share, as a logarithm. It is so large that the
level counts as unknown: only ratios of costs matter, and predictions may be in any unit."""
ROUND_STD = 0.15
"""Standard deviation of the level that the trials of a round share, as a logarithm: a round is
usually up to about 15 % slower or faster than others."""
USUAL_NOISE_STD = 0.08
"""Standard deviation of the logarithm of a trial's cost that is assumed before any configuration
has run twice: about 8 %."""
USUAL_NOISE_FREEDOM = 4
"""Degrees of freedom with which USUAL_NOISE_STD counts next to measured noise. Measured noise
counts for more than half once it has more degrees of freedom than this."""
OPTIMISM_DEVIATIONS = 1.5
"""Number of standard deviations by which each estimated cost is lowered when trials are chosen, so
that configurations about which little is known are preferred."""

Costs = Mapping[str, Mapping[int, float]]
"""The cost of each trial, by name of the configuration and number of the round."""


@dataclass(frozen=True, kw_only=True)
class Posterior:
    """The estimate of the logarithms of all configurations' costs, after the trials so far."""

    mean: np.ndarray
    """The estimated logarithm of each cost, (names,)."""
    covariance: np.ndarray
    """The covariance of these logarithms, (names, names)."""
    noise: float
    """Standard deviation of the logarithm of a trial's cost."""

    def difference_std(self, place: int) -> np.ndarray:
        """Standard deviation of each configuration's difference from the one at index `place`."""
        variances = np.diag(self.covariance)
        # Var(a - b) = Var(a) + Var(b) - 2 Cov(a, b), so the large variance of LEVEL_STD cancels.
        squares = variances + variances[place] - 2 * self.covariance[place]
        return np.sqrt(np.maximum(squares, 0.0))


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """The configurations of a race with their predicted costs; the first is the present one."""

    names: Sequence[str]
    """Names of the configurations."""
    changes: Sequence[Collection[str]]
    """The overrides by which each configuration differs from the first; empty for the first."""
    predicted: Sequence[float]
    """The cost that the model predicts for each, in any unit; all equal if there is no model."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Index of each name."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def prior(self) -> np.ndarray:
        """The covariance of the model's errors before any trial, (names, names)."""
        settings = sorted(set().union(*self.changes))
        has = np.array([[each in change for each in settings] for change in self.changes], float)
        has = has.reshape(len(self.names), -1)
        # Entry (a, b) is the number n of settings that a and b share. They share n (n - 1) / 2
        # pairs of settings.
        shared = has @ has.T
        is_change = np.array([float(bool(change)) for change in self.changes])
        any_change = np.outer(is_change, is_change)
        pairs = shared * (shared - 1) / 2
        covariance = SETTING_STD**2 * shared + PAIR_STD**2 * pairs + CHANGE_STD**2 * any_change
        covariance += OWN_STD**2 * np.diag(is_change)
        deviations = np.sqrt(np.diag(covariance))
        # The present configuration has no error of its own, because all others are compared with
        # it. Dividing by 1 leaves its variance at 0.
        deviations[deviations == 0] = 1.0
        # All others get the same standard deviation. If configurations with more settings were more
        # uncertain, the first trials would all go to them, and a loader that needs no setting would
        # not be tried.
        return ERROR_STD**2 * covariance / np.outer(deviations, deviations)

    def fit(self, costs: Costs) -> Posterior:
        """Estimate the costs of all configurations from the costs of the trials so far."""
        logs = np.log(np.asarray(self.predicted, float))
        places = np.array([self.places[name] for name in costs])
        values, has_run = _tabulate([*costs.values()])
        errors = has_run * (values - logs[places, None])
        noise = estimate_noise(costs)
        rows, columns = np.nonzero(has_run)
        prior = self._scale(places[rows], errors[rows, columns]) * self.prior + LEVEL_STD**2
        # The error of a trial is f[name] + r[round] + noise: f is the model's error for the
        # configuration, and r is the level of the round. Let y be the errors of the trials, A the
        # (trials, names + rounds) matrix with a one for the name and the round of each trial, B the
        # prior covariance of f and r, and s^2 the variance of the noise. The estimate needs
        # A^T (A B A^T + s^2 I)^-1, a system with a row for each trial. It is equal to
        # (A^T A B + s^2 I)^-1 A^T, a system with a row for each name that has run and for each
        # round. In a long race these are fewer. Below, `between` is B, `sums` is A^T y, `counts` is
        # A^T A, and `to_seen` is the covariance of f and r with f of all names.
        count, rounds = has_run.shape
        between = ROUND_STD**2 * np.eye(count + rounds)
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
        """Choose up to `count` names to run next, the most promising first.

        posterior: the present estimate. chosen: names that run in the same round already. excluded:
        names that must not run. Names with settings of a chosen name become less promising.
        """
        covariance = posterior.covariance.copy()
        picked = [self.places[each] for each in chosen]
        for place in picked:
            _expect_trial(covariance, place, posterior.noise)
        mean = posterior.mean.copy()
        num_chosen = len(picked)
        mean[[*picked, *(self.places[each] for each in excluded)]] = np.inf
        while len(picked) < num_chosen + count and np.isfinite(mean).any():
            # The variances of the differences from the present configuration, which is at place 0.
            variances = np.diag(covariance) + covariance[0, 0] - 2 * covariance[0]
            bounds = mean - OPTIMISM_DEVIATIONS * np.sqrt(np.maximum(variances, 0.0))
            picked.append(int(np.argmin(bounds)))
            mean[picked[-1]] = np.inf
            # A trial of the picked name will make names with the same settings less uncertain, so
            # they are less promising in this round (as in GP-BUCB, Desautels, Krause and Burdick
            # 2014).
            _expect_trial(covariance, picked[-1], posterior.noise)
        return [self.names[place] for place in picked[num_chosen:]]

    def shortlist(self, count: int) -> list[str]:
        """Choose the `count` most promising names before any trial, without the present one."""
        prior = self.prior + LEVEL_STD**2
        mean = np.log(np.asarray(self.predicted, float))
        known = Posterior(mean=mean, covariance=prior, noise=USUAL_NOISE_STD)
        return self.choose(known, count, chosen=self.names[:1])

    def _scale(self, places: np.ndarray, errors: np.ndarray) -> float:
        """The factor by which the prior is scaled, from 1 to LARGEST_VARIANCE_RATIO.

        Inside these limits it is the variance of the errors in trials, divided by their prior
        variance. 1 if fewer than two trials of changed configurations have run.

        places: index of the configuration of each trial. errors: the error of each trial.
        """
        own = np.diag(self.prior)[places]
        # The present configuration has no error of its own. A single error shows no variance.
        others = own > 0
        if others.sum() < 2:
            return 1.0
        ratio = np.mean((errors[others] - errors[others].mean()) ** 2 / own[others])
        return float(np.clip(ratio, 1.0, LARGEST_VARIANCE_RATIO))


def estimate_noise(costs: Costs) -> float:
    """Estimate the standard deviation of the logarithm of a trial's cost from repeated trials.

    The estimate is USUAL_NOISE_STD if no trial was repeated.
    """
    repeated = [each for each in costs.values() if len(each) > 1]
    logs, is_known = _tabulate(repeated)
    squares = 0.0
    free = 0
    if repeated:
        # Degrees of freedom of an additive two-way table: trials - names - rounds + 1.
        free = max(0, int(is_known.sum()) - sum(logs.shape) + 1)
    if free:
        of_names, of_rounds = is_known.sum(axis=1, keepdims=True), is_known.sum(axis=0)
        # The means of names and of rounds are removed alternately; after ten steps both are about
        # zero. One step is not enough: not every round has all names, so removing the means of
        # names changes the means of rounds, and the other way round.
        for _ in range(10):
            logs -= is_known * (logs.sum(axis=1, keepdims=True) / of_names)
            logs -= is_known * (logs.sum(axis=0) / of_rounds)
        squares = float((logs**2).sum())
    return float(
        np.sqrt((USUAL_NOISE_FREEDOM * USUAL_NOISE_STD**2 + squares) / (USUAL_NOISE_FREEDOM + free))
    )


def _tabulate(costs: Sequence[Mapping[int, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Two float64 arrays (names, rounds) of the logarithms of costs, and of the known entries.

    The first array is 0.0 for an unknown cost. The second array is 1.0 for a known cost, else 0.0.
    """
    numbers = sorted({number for each in costs for number in each})
    columns = {number: column for column, number in enumerate(numbers)}
    logs, is_known = np.zeros((2, len(costs), len(columns)))
    for row, each in enumerate(costs):
        places = [columns[number] for number in each]
        logs[row, places], is_known[row, places] = np.log([*each.values()]), 1.0
    return logs, is_known


def _expect_trial(covariance: np.ndarray, place: int, noise: float) -> None:
    """Reduce the covariance, in place, as a trial of the configuration at index `place` would."""
    # The covariance C becomes C - c c^T / (c_place + noise^2), whatever the outcome of the trial.
    column = covariance[:, place].copy()
    covariance -= np.outer(column, column) / (column[place] + noise**2)
