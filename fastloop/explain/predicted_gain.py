"""Predict the gain of a change, which is the share of an epoch that it saves, with an interval.

Let T be the measured seconds of an epoch of the job as it is, and let P and C be the seconds that
the model predicts for this job and for the changed job. The model misses the measured time by
m = log(P / T). Then the gain and its 90 % interval are

    1 - exp(log(C / T) - k m)    and    1 - exp(log(C / T) - k m +- 1.645 s).

k is the share of the miss that is subtracted. If the change keeps the loader, its work, and the
numbers of workers and of threads, the miss stays, and k is 1: the gain is 1 - C / P. After other
changes the miss may stay or vanish, and k is 1/2.

s is a standard deviation. Its square is the sum of the variances of four errors:

- Only some batches and hand-offs were timed. A bootstrap over both gives the deviation of
  log(C / P).
- Two passes over the same batches take different times. This error counts only if k is 1/2.
- The model has errors: m / 2, and LEAST_MISS, or LEAST_MISS_OF_OTHERS with another loader.
- The passes that later measure the realised gain are noisy.

experiments/explain/README.md counts how often the intervals contain the realised gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from fastloop.core import stats
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.batch_passes import BatchTimes
from fastloop.explain.change_effect import Effect, find_effect
from fastloop.explain.ladder import Ladder
from fastloop.explain.model import LEAST_MISS, LEAST_MISS_OF_OTHERS
from fastloop.explain.predict import HandOff, Measured, predict_seconds
from fastloop.trial.job import Job

RESAMPLES = 16
"""Number of bootstrap samples for each change; all changes of a job use the same samples."""
DEVIATIONS_TO_END = 1.645
"""Standard deviations from the middle to an end of a 90 % interval of a normal variable."""
MOST_DIFFERENT = 0.3
"""Greatest allowed difference of two passes, as the logarithm of the ratio of their times. 0.3 is a
factor of 1.35. If two passes differ by more, their mean says nothing about a further pass."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The model of a job before and after a change: functions from measurements to seconds."""

    present: Callable[[Measured], float]
    """Seconds of an epoch of the job as it is."""
    changed: Callable[[Measured], float]
    """Seconds of an epoch of the changed job."""
    keeps_miss: bool
    """True if the change keeps the loader, its work, and the numbers of workers and of threads, and
    so the model's miss."""
    is_other_loader: bool
    """True if the change makes batches in another way: by another loader or decoder, or with the
    transform on the device."""


def predict_gain(job: Job, present: Job, measured: Measured, ladder: Ladder) -> Estimate | None:
    """Share of an epoch that a change saves, with its interval; None if it can't be predicted.

    job: the changed job. present: the job as it is, to which `measured` and `ladder` belong.
    """
    # If the files are warm already, cache=warm changes nothing.
    if present.cache != "warm" and job == replace(present, cache="warm"):
        return _gain_of_warm_files(ladder)
    effect = find_effect(job, present, measured)
    if effect is None:
        return None
    # These three settings decide which measured times of batches the model uses.
    before, after = (
        (each.loader, each.loading.num_workers, each.torch_threads) for each in (present, job)
    )
    prediction = Prediction(
        present=partial(predict_seconds, present),
        changed=partial(effect.predict, job),
        keeps_miss=before == after and effect == Effect(),
        is_other_loader=job.loader != present.loader or effect != Effect(),
    )
    return estimate_gain(prediction, measured, ladder)


def _gain_of_warm_files(ladder: Ladder) -> Estimate | None:
    """The ladder's share of reading files; None if it has no row for reading or for decoding."""
    # Without a row for decoding, READ is all the work of reading a store, and not the cost of a
    # cold page cache.
    shares = {row.rung: row.share for row in ladder.rows}
    return shares.get(Part.READ) if Part.DECODE in shares else None


def estimate_gain(prediction: Prediction, measured: Measured, ladder: Ladder) -> Estimate | None:
    """The share of an epoch that a change saves, with its 90 % interval.

    None if the two passes of single batches differ too much for a prediction.
    """
    difference = max(measured.own_threads.difference, measured.one_thread.difference)
    # If the change keeps the miss, the passes need not agree, because the model's times before and
    # after the change then come from the same batches.
    if difference > MOST_DIFFERENT and not prediction.keeps_miss:
        return None
    epoch_s = ladder.epoch_s.value
    miss = math.log(prediction.present(measured) / epoch_s)
    subtracted = miss if prediction.keeps_miss else miss / 2
    log_ratio = math.log(prediction.changed(measured) / epoch_s) - subtracted
    deviation = math.hypot(
        _spread(prediction, measured, ladder.noise),
        miss / 2,
        LEAST_MISS_OF_OTHERS if prediction.is_other_loader else LEAST_MISS,
        # A realised gain compares two means, each over as many rounds as the ladder has.
        ladder.noise * math.sqrt(2 / ladder.rounds),
        # Two passes that each have the standard deviation s differ by about s * sqrt(2).
        0.0 if prediction.keeps_miss else max(ladder.noise, difference) / math.sqrt(2),
    )
    reach = DEVIATIONS_TO_END * deviation
    middle, low, high = (1 - math.exp(log_ratio + each) for each in (0.0, reach, -reach))
    return Estimate(value=middle, low=low, high=high, is_interval=True)


def _spread(prediction: Prediction, measured: Measured, noise: float) -> float:
    """Standard deviation over bootstrap samples of log(time after the change / time before).

    noise: as in `resample`.
    """
    logs = []
    # The seeds are fixed. So equal measurements give equal intervals, and all changes of a job are
    # judged by the same bootstrap samples.
    for seed in range(RESAMPLES):
        generator = np.random.default_rng(seed)
        again = resample(measured, noise, generator)
        logs.append(math.log(prediction.changed(again) / prediction.present(again)))
    return stats.std(logs) or 0.0


def resample(measured: Measured, noise: float, generator: np.random.Generator) -> Measured:
    """A bootstrap sample of the measurements.

    Batches, and rounds of hand-offs, are drawn with replacement.
    noise: relative standard deviation of a pass of the ladder.
    """
    hand_off = {
        workers: _resample_rounds(rounds, noise, generator)
        for workers, rounds in measured.hand_off.items()
    }
    return replace(
        measured,
        own_threads=_resample_batches(measured.own_threads, generator),
        one_thread=_resample_batches(measured.one_thread, generator),
        hand_off=hand_off,
    )


def _resample_rounds(
    rounds: Sequence[HandOff], noise: float, generator: np.random.Generator
) -> list[HandOff]:
    """As many rounds, drawn with replacement, with random noise of this standard deviation.

    The seconds of the pass in which workers send batches are multiplied by a factor of noise.
    """
    places = generator.integers(len(rounds), size=len(rounds)).tolist()
    # The times of few rounds may be almost equal by chance. So each round gets the noise of a pass
    # of the ladder.
    factors = np.exp(noise * generator.standard_normal(len(rounds))).tolist()
    return [
        _scale_workers_pass(rounds[place], factor)
        for place, factor in zip(places, factors, strict=True)
    ]


def _scale_workers_pass(hand_off: HandOff, factor: float) -> HandOff:
    """The hand-off, with the seconds of the workers' pass multiplied by the factor."""
    from_workers = hand_off.from_workers
    scaled = replace(from_workers, seconds=from_workers.seconds * factor)
    return hand_off._replace(from_workers=scaled)


def _resample_batches(times: BatchTimes, generator: np.random.Generator) -> BatchTimes:
    """The times of as many batches, drawn with replacement; `load_delay_s` stays as it is."""
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
