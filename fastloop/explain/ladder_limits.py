"""Limit the draws of a ladder by measurements that a noisy difference of two rungs can't refute.

The seconds of the rungs are known with an error: the draws of a rung are possible values of its
seconds, see certainty.py. The limits are the time that the loader takes
without steps, the time in the loader's next(), and the time of placing batches by a clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from fastloop.core import stats
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.certainty import draw_shares, estimate_from
from fastloop.explain.rung_passes import Round
from fastloop.explain.rungs import increase_by_rung, starting_rungs


def limit_draws(
    seconds: Mapping[Part, np.ndarray],
    rounds: Sequence[Round],
    loader_shares: Sequence[float],
    noise: float,
    *,
    overlaps: bool,
) -> Mapping[Part, np.ndarray]:
    """Limit the draws of each rung's seconds by the loader alone, by next() and by the copies.

    loader_shares: as in `build_ladder`; empty: the loader alone is no limit. noise: relative
    standard deviation of a measurement. overlaps: True if the job loads while it steps; then next()
    is no limit.
    """
    seconds = _limit_by_loader(seconds, loader_shares, noise)
    # If the job overlaps nothing, all of its loading happens inside next().
    if not overlaps:
        seconds = _limit_by_next(seconds, rounds)
    return _limit_copy(seconds, rounds)


def reach_next(wait: Estimate, rounds: Sequence[Round], device: str, *, overlaps: bool) -> Estimate:
    """The share that a perfect loader saves, with an interval that reaches the time in next().

    The interval stays as it is if the job overlaps loading with steps, or steps on another device
    than "cpu". wait: the share that a perfect loader saves. device: the type of the device of the
    steps; empty: not known.
    """
    # Noise of the steps may bring the difference of two rungs below the measured wait of the loop.
    # On other devices that wait is no lower limit: the device may compute while the loop loads.
    if overlaps or device != "cpu":
        return wait
    last = list(rounds[0])[-1]
    in_next = stats.median([times[last].next_share for times in rounds])
    return replace(wait, high=max(wait.high, in_next))


def find_slower_steps(rounds: Sequence[Round], shares: Mapping[Part, np.ndarray]) -> Estimate:
    """Share of the epoch that is neither in next(), nor in the step, nor in the loop's other work.

    In a job that overlaps nothing, this share is the time by which steps are slower than steps
    without loads between them. shares: draws of each part's share of the epoch.
    """
    last = list(rounds[0])[-1]
    starting, _ = starting_rungs(rounds[0])
    rungs = list(rounds[0])
    # The rungs below the loader, the step among them, are the loop's work outside of next().
    in_loop = [shares[rung] for rung in rungs[: rungs.index(starting)]]
    in_next = stats.median([times[last].next_share for times in rounds])
    return estimate_from(1 - in_next - np.sum(in_loop, axis=0))


def spread_of(values: Sequence[float]) -> float:
    """Standard deviation of the logarithms of the values; 0 for a single value."""
    return stats.std([math.log(value) for value in values]) or 0.0


def _limit_by_loader(
    seconds: Mapping[Part, np.ndarray], shares: Sequence[float], noise: float
) -> Mapping[Part, np.ndarray]:
    """Limit the draws: no rung differs from the job by more than the loader takes alone.

    shares: the loader_shares of `build_ladder`; empty: no limit is known. noise: relative standard
    deviation of a measurement.
    """
    # Steps and loading that share the cores take at most as long as one after the other: no part of
    # loading adds more to an epoch than all of loading takes alone. A difference of two rungs with
    # long steps may exceed that limit by noise, which is no evidence against the limit.
    if not shares:
        return seconds
    error = max(noise, spread_of(shares)) / len(shares) ** 0.5
    normals = np.random.default_rng(2).standard_normal(len(seconds[Part.STEP]))
    # As in draw_seconds, the first draw is the estimate.
    normals[0] = 0
    return _clip_rungs(seconds, list(seconds), stats.median(shares) * np.exp(error * normals))


def _limit_by_next(
    seconds: Mapping[Part, np.ndarray], rounds: Sequence[Round]
) -> Mapping[Part, np.ndarray]:
    """Limit the draws of a job that overlaps nothing: no part of loading takes longer than next().

    If steps between loads are slower far beyond noise, the draws stay as they are.
    """
    last = list(seconds)[-1]
    shares = {rung: part / seconds[last] for rung, part in increase_by_rung(seconds).items()}
    slower = find_slower_steps(rounds, shares)
    # If the interval of few rounds only just excludes zero, the clock around next() is the better
    # evidence.
    if slower.low > max(0.0, slower.value / 2):
        return seconds
    _, below = starting_rungs(seconds)
    rungs = list(seconds)
    in_next = draw_shares([times[last].next_share for times in rounds], len(seconds[last]), seed=3)
    # Lower rungs are not limited: they also lack the copy to the device, which is not in next().
    return _clip_rungs(seconds, rungs[rungs.index(below) :], np.maximum(0.0, in_next))


def _limit_copy(
    seconds: Mapping[Part, np.ndarray], rounds: Sequence[Round]
) -> Mapping[Part, np.ndarray]:
    """Limit the draws: placing batches on the device adds at most the time that a clock measured.

    If a round has no such time, the draws stay as they are.
    """
    # The same steps may take a quarter longer in one pass than in another, if they compute in
    # several threads. Such a difference is no evidence of copies that the clock did not measure.
    passes = [times[Part.COPY] for times in rounds if Part.COPY in times]
    shares = [each.place_s / each.seconds for each in passes if each.place_s is not None]
    if not shares or len(shares) < len(rounds):
        return seconds
    step_s, copy_s = seconds[Part.STEP], seconds[Part.COPY]
    placing = np.maximum(0.0, draw_shares(shares, len(copy_s), seed=4))
    return {**seconds, Part.COPY: np.clip(copy_s, step_s, step_s + placing * copy_s)}


def _clip_rungs(
    seconds: Mapping[Part, np.ndarray], rungs: Sequence[Part], share: np.ndarray
) -> Mapping[Part, np.ndarray]:
    """Limit the draws of these rungs to the job's draws, plus or minus this share of them."""
    job = seconds[list(seconds)[-1]]
    low, high = (1 - share) * job, (1 + share) * job
    return {
        rung: np.clip(draws, low, high) if rung in rungs else draws
        for rung, draws in seconds.items()
    }
