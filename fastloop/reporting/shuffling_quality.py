"""Compare how well jobs shuffle, for the verdict on a benchmark and for the caveats of a job.

A job that shuffles less may be faster only for that reason.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fastloop.core.result import Result, Shuffling

LEAST_DISTANCE = 0.1
"""Minimum difference in `Shuffling.distance` between two jobs of which one shuffles less. In a job
with at most this distance, the samples are in stored order, or nearly so."""
LEAST_KEPT = 0.1
"""Minimum difference in `Shuffling.neighbours_kept` between two jobs of which one shuffles less."""
BEYOND_CHANCE = 4
"""Number of standard deviations that a difference between two jobs has to exceed, so that it is not
due to chance. The standard deviation is that of the difference between two uniform shuffles. One
normal value in 30,000 lies that far above the mean. The limit is so high because all pairs of jobs
are compared."""


def find_shuffling(result: Result) -> Shuffling | None:
    """The job's shuffling, from the trial that was compared with the dataset; None if unknown."""
    return result.shadow.shuffling if result.shadow else None


def shuffles_less(result: Result, other: Result) -> bool:
    """True if a job shuffles less than another one, by more than chance.

    The job then leaves samples nearer to their stored places, keeps more neighbours together, or
    repeats one order in every epoch while the other job does not. False if the shuffling of one of
    the two jobs is not known.
    """
    own, others = find_shuffling(result), find_shuffling(other)
    if not own or not others:
        return False
    noise, others_noise = _find_noise(result), _find_noise(other)
    distance = _least_difference(LEAST_DISTANCE, noise.distance, others_noise.distance)
    kept = _least_difference(LEAST_KEPT, noise.neighbours_kept, others_noise.neighbours_kept)
    return (
        own.distance < others.distance - distance
        or own.neighbours_kept > others.neighbours_kept + kept
        or (own.new_order_each_epoch is False and others.new_order_each_epoch is True)
    )


def _least_difference(least: float, first_deviation: float, second_deviation: float) -> float:
    """The difference between the figures of two jobs that counts: `least`, or more if chance alone
    may cause that.

    first_deviation, second_deviation: standard deviations of the two figures.
    """
    return max(least, BEYOND_CHANCE * math.hypot(first_deviation, second_deviation))


class _UniformNoise(NamedTuple):
    """Standard deviations of two figures of a `Shuffling`, if the shuffle is uniform."""

    distance: float
    neighbours_kept: float


def _find_noise(result: Result) -> _UniformNoise:
    """The standard deviations of a uniform shuffle of this job's samples."""
    epochs = result.shadow.epochs if result.shadow else 1
    samples = max(1, result.num_samples * max(1, epochs))
    # A user's own loader has batches of its own size, which is not known.
    size = result.params.get("batch_size")
    share = min(1.0, (size if isinstance(size, int) else 1) / max(1, result.num_samples))
    kept = 1 - (1 - share) ** 2
    return _UniformNoise(
        # The variance of Spearman's footrule, (n + 1) (2 n² + 7) / 45 (Diaconis and Graham 1977),
        # for many samples and with the mean distance of n/3 as the unit.
        distance=math.sqrt(0.4 / samples),
        # `kept` is the probability that a uniform shuffle keeps a neighbour, in as many independent
        # draws as there are samples. The figure is divided by 1 - kept, so that it is 1 in stored
        # order. If a batch has all samples, all neighbours are kept, and the figure is always 0.
        neighbours_kept=math.sqrt(kept / (1 - kept) / samples) if kept < 1 else 0.0,
    )


def describe_shuffling(shuffling: Shuffling) -> str:
    """The quality of a shuffle in words.

    For example: `distance 0.10 of 1, 90 % of neighbours stay together`, or for samples that are
    shuffled once, `the same order in every epoch`.
    """
    # Stored order is the same in every epoch, too; its distance says more.
    if shuffling.new_order_each_epoch is False and shuffling.distance > LEAST_DISTANCE:
        return "the same order in every epoch"
    kept = f"{100 * shuffling.neighbours_kept:.0f} % of neighbours stay together"
    return f"distance {shuffling.distance:.2f} of 1, {kept}"
