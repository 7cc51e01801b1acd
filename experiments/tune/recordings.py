"""The recordings: the time of every configuration of a workload in every round, and the right
answers that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from experiments.explain.record import Record
from experiments.tune.workloads import YOURS
from fastloop.core import stats

WITHIN = 0.05
ALIKE_ROUNDS = 60


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The times of a workload's configurations, which ran in the same rounds."""

    workload: str
    names: tuple[str, ...]
    """Names of the configurations, the user's own first."""
    seconds: np.ndarray
    """Seconds of an epoch, with shape (configurations, rounds)."""
    cost_s: np.ndarray
    """Mean cost of a trial, with its warm-up, with shape (configurations,)."""

    @cached_property
    def places(self) -> dict[str, int]:
        """Name of a configuration -> its index."""
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def medians(self) -> np.ndarray:
        """Median seconds over the rounds, with shape (configurations,)."""
        return np.median(self.seconds, axis=1)

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return self.seconds.shape[1]

    @cached_property
    def good(self) -> frozenset[str]:
        """The configurations that count as the best: within 5 % of the least median, or not told
        from it by all rounds together."""
        medians, best = self.medians, int(np.argmin(self.medians))
        near = {
            name
            for name, median in zip(self.names, medians, strict=True)
            if median <= (1 + WITHIN) * medians[best]
        }
        return frozenset(near | {name for name in self.names if not self._is_slower(name, best)})

    @cached_property
    def worse_than_yours(self) -> frozenset[str]:
        """The configurations that all rounds together show to be slower than the user's own, by 2 %
        or more."""
        yours = self.names.index(YOURS)
        limit = (1 + stats.MINIMUM_EFFECT) * self.medians[yours]
        slower = {name for name in self.names if self._is_slower(name, yours)}
        return frozenset(name for name in slower if self.median_of(name) > limit)

    def median_of(self, name: str) -> float:
        """The configuration's median seconds over all rounds."""
        return float(self.medians[self.places[name]])

    def _is_slower(self, name: str, other: int) -> bool:
        ratio = stats.ratio([*self.seconds[self.names.index(name)]], [*self.seconds[other]])
        return ratio is not None and ratio.low > 1


def build_recordings(records: Sequence[Record]) -> list[Recording]:
    """The recordings in the lines of rounds.jsonl, without round 0, in which nothing was timed."""
    timed: dict[str, list[Record]] = {}
    for each in records:
        if each["round"]:
            timed.setdefault(each["workload"], []).append(each)
    return [_build(workload, rounds) for workload, rounds in timed.items()]


def all_alike(recording: Recording, generator: np.random.Generator) -> Recording:
    """A recording in which every configuration is as fast as the user's own.

    Its trials are drawn from the deviations of all trials from their configuration's median. There
    are so many that no trial has to be used both to choose and to confirm.
    """
    of_rounds = np.median(recording.seconds / recording.medians[:, None], axis=0)
    deviations = (recording.seconds / recording.medians[:, None] / of_rounds).ravel()
    drawn = generator.choice(deviations, (len(recording.names), ALIKE_ROUNDS))
    shared = generator.choice(of_rounds, ALIKE_ROUNDS)
    return Recording(
        workload=recording.workload,
        names=recording.names,
        seconds=recording.median_of(YOURS) * drawn * shared,
        cost_s=recording.cost_s,
    )


def _build(workload: str, rounds: Sequence[Record]) -> Recording:
    names = [
        name for name in rounds[0]["seconds"] if all(name in each["seconds"] for each in rounds)
    ]
    names.sort(key=lambda name: name != YOURS)
    seconds = np.array([[each["seconds"][name] for each in rounds] for name in names])
    cost_s = np.array([[each["cost_s"][name] for each in rounds] for name in names])
    return Recording(
        workload=workload, names=tuple(names), seconds=seconds, cost_s=cost_s.mean(axis=1)
    )
