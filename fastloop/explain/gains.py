"""Predicted gains of changes with their intervals.

Four things make a prediction unsure, and their variances on the logarithmic scale add up: which
batches were timed (a bootstrap), by how much two passes of them differ, what the model gets wrong
(its miss of the job as it is, and a floor), and the noise of the passes that will judge it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastloop.core import stats
from fastloop.core.stats import Estimate
from fastloop.explain.ladder import Ladder
from fastloop.explain.passes import BatchTimes
from fastloop.explain.predict import HandOff, Measured

RESAMPLES = 16
BEYOND = 1.645
"""Standard deviations from the middle to the ends of a 90 % interval."""
LEAST_MISS, LEAST_MISS_OF_OTHERS = 0.03, 0.06
"""Standard deviation of what the model gets wrong even where it has the job as it is right: for the
same loader, and for another one."""
MOST_DIFFERENT = 0.3
"""Logarithm of the ratio of two passes' batches up to which their mean is a basis."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The model's seconds of a changed job beside those of the job as it is."""

    present: Callable[[Measured], float]
    changed: Callable[[Measured], float]
    keeps_miss: bool
    """True where the change leaves alone what the model misses: loader, workers and threads."""
    is_other_loader: bool
    """True where batches are made in another way: by another loader, decoder or place."""


def estimate_gain(prediction: Prediction, measured: Measured, ladder: Ladder) -> Estimate | None:
    """The share of an epoch that a change saves, with its 90 % interval; None where two passes of
    single batches differ so much that there is no basis for it.

    Where loader, workers and threads stay, the model is compared with itself, so that its miss
    cancels; otherwise half of its miss is taken to stay, and batches of other passes than those of
    the job as it is are as unsure as two passes of them differ.
    """
    difference = max(measured.as_is.difference, measured.single.difference)
    if difference > MOST_DIFFERENT and not prediction.keeps_miss:
        return None
    basis = 0.0 if prediction.keeps_miss else max(ladder.noise, difference) / math.sqrt(2)
    miss = math.log(prediction.present(measured) / ladder.epoch_s.value)
    kept = 1.0 if prediction.keeps_miss else 0.5
    log_ratio = math.log(prediction.changed(measured) / ladder.epoch_s.value) - kept * miss
    floor = LEAST_MISS_OF_OTHERS if prediction.is_other_loader else LEAST_MISS
    noise = ladder.noise * math.sqrt(2 / ladder.rounds)
    sources = [_spread(prediction, measured, ladder.noise), miss / 2, floor, noise, basis]
    reach = BEYOND * math.hypot(*sources)
    middle, low, high = (1 - math.exp(log_ratio + each) for each in (0.0, reach, -reach))
    return Estimate(value=middle, low=low, high=high, is_interval=True)


def _spread(prediction: Prediction, measured: Measured, noise: float) -> float:
    """Standard deviation, over resamples, of the logarithm of the change's effect."""
    logs = []
    for seed in range(RESAMPLES):
        generator = np.random.default_rng(seed)
        again = resample(measured, noise, generator)
        logs.append(math.log(prediction.changed(again) / prediction.present(again)))
    return stats.std(logs) or 0.0


def resample(measured: Measured, noise: float, generator: np.random.Generator) -> Measured:
    """The measurements with batches and rounds of hand-offs drawn anew.

    Few rounds may be equal by chance: they are also taken to be as noisy as passes of the ladder.
    """
    hand_off = {
        workers: _resample_rounds(rounds, noise, generator)
        for workers, rounds in measured.hand_off.items()
    }
    return replace(
        measured,
        as_is=_resample_batches(measured.as_is, generator),
        single=_resample_batches(measured.single, generator),
        hand_off=hand_off,
    )


def _resample_rounds(
    rounds: Sequence[HandOff], noise: float, generator: np.random.Generator
) -> list[HandOff]:
    places = generator.integers(len(rounds), size=len(rounds)).tolist()
    factors = np.exp(noise * generator.standard_normal(len(rounds))).tolist()
    return [
        (replace(through, seconds=through.seconds * factor), ready)
        for factor, (through, ready) in zip(
            factors, (rounds[place] for place in places), strict=True
        )
    ]


def _resample_batches(times: BatchTimes, generator: np.random.Generator) -> BatchTimes:
    places = generator.integers(len(times.load_s), size=len(times.load_s)).tolist()

    def pick(values: Sequence[float]) -> list[float]:
        return [values[place] for place in places]

    return replace(
        times,
        load_s=pick(times.load_s),
        load_cpu_s=pick(times.load_cpu_s),
        step_s=pick(times.step_s),
        step_cpu_s=pick(times.step_cpu_s),
    )
