"""Predicted gains of changes with their intervals.

A prediction is unsure for four reasons, and their variances on the logarithmic scale add up: the
choice of batches that were timed (a bootstrap), the difference of two passes of them, the errors of
the model (its miss of the job as it is, and a floor), and the noise of the passes that judge it.
experiments/explain/README.md counts how often the intervals contain the realised gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastloop.core import stats
from fastloop.core.stats import Estimate
from fastloop.explain.ladder import Ladder
from fastloop.explain.predict import HandOff, Measured
from fastloop.explain.rung_passes import BatchTimes

RESAMPLES = 16
BEYOND = 1.645
"""Standard deviations from the middle to the ends of a 90 % interval of a normal variable."""
LEAST_MISS, LEAST_MISS_OF_OTHERS = 0.03, 0.06
"""Standard deviation of the model's error even if it gives the job as it is exactly: for the same
loader, and for another one."""
MOST_DIFFERENT = 0.3
"""Greatest logarithm of the ratio of two passes, a factor of 1.35; beyond it their mean tells
nothing of a further pass."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The model's seconds of a changed job beside those of the job as it is."""

    present: Callable[[Measured], float]
    changed: Callable[[Measured], float]
    keeps_miss: bool
    """True if loader, workers and threads stay, so that the model's miss is the same after the
    change."""
    is_other_loader: bool
    """True if batches are made in another way: by another loader, decoder or place."""


def estimate_gain(prediction: Prediction, measured: Measured, ladder: Ladder) -> Estimate | None:
    """The share of an epoch that a change saves, with its 90 % interval; None if two passes of
    single batches differ too much for a prediction."""
    difference = max(measured.as_is.difference, measured.single.difference)
    # A model that is compared with itself needs no agreement of the passes: both of its epochs are
    # from the same batches.
    if difference > MOST_DIFFERENT and not prediction.keeps_miss:
        return None
    # Two passes with a deviation of s each differ by about s * sqrt(2).
    basis = 0.0 if prediction.keeps_miss else max(ladder.noise, difference) / math.sqrt(2)
    miss = math.log(prediction.present(measured) / ladder.epoch_s.value)
    # The miss cancels if loader, workers and threads stay. After other changes it may stay or
    # vanish: half of it is taken to stay, and the other half (below) as a deviation.
    kept = 1.0 if prediction.keeps_miss else 0.5
    log_ratio = math.log(prediction.changed(measured) / ladder.epoch_s.value) - kept * miss
    floor = LEAST_MISS_OF_OTHERS if prediction.is_other_loader else LEAST_MISS
    # A realised gain compares two means over as many rounds.
    noise = ladder.noise * math.sqrt(2 / ladder.rounds)
    sources = [_spread(prediction, measured, ladder.noise), miss / 2, floor, noise, basis]
    reach = BEYOND * math.hypot(*sources)
    middle, low, high = (1 - math.exp(log_ratio + each) for each in (0.0, reach, -reach))
    return Estimate(value=middle, low=low, high=high, is_interval=True)


def _spread(prediction: Prediction, measured: Measured, noise: float) -> float:
    """Standard deviation over resamples of the logarithm of the change's effect."""
    logs = []
    # The seeds are fixed: the same measurements give the same interval, and all changes of a job
    # are judged by the same resamples.
    for seed in range(RESAMPLES):
        generator = np.random.default_rng(seed)
        again = resample(measured, noise, generator)
        logs.append(math.log(prediction.changed(again) / prediction.present(again)))
    return stats.std(logs) or 0.0


def resample(measured: Measured, noise: float, generator: np.random.Generator) -> Measured:
    """The measurements with batches and rounds of hand-offs drawn anew.

    noise: relative deviation of a pass of the ladder.
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
    # Few rounds may be equal by chance; each is taken to be as noisy as a pass of the ladder.
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
