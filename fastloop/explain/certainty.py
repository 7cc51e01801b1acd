"""Certainty about differences between interleaved passes: draws of the times that rounds allow for.

On the logarithmic scale each pass has a level, and each round a shock that its passes share, both
by median polish (Tukey 1977). What remains is noise. Two rounds tell little about the noise of one
pass and more about that of six, so that its scale is pooled; a pass that is noisier keeps its own.
Scales leave out the greatest residuals, as one disturbed pass says nothing about the others.
experiments/verdicts/README.md has the shares of wrong verdicts, and of those that are not given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from fastloop.core.stats import Estimate

Key = TypeVar("Key")

DRAWS = 4000
CALIBRATIONS = 2000
POLISHES = 3
KEPT_RESIDUALS = 0.8
"""Share of all residuals, without the greatest, from which the common scale is taken."""
EFFICIENCY = 0.6
"""Degrees of freedom of that scale, relative to those of the variance of normal residuals."""
OWN_WEIGHT = 0.7
"""Weight of a pass's own variance, which has few residuals, where that is the greater one."""
PRIOR_NOISE, PRIOR_FREEDOM = 0.03, 1.0
"""Noise that is assumed before there is any round, and its weight in degrees of freedom."""
NOISE_OF_ONE, FREEDOM_OF_ONE = 0.1, 4.0
"""The same where a single round shows no noise."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Times of passes without what the passes of a round share."""

    logs: np.ndarray
    """By pass: logarithm of the seconds in a middling round."""
    errors: np.ndarray
    """By pass: standard error of that."""
    freedom: float
    """Degrees of freedom of the errors."""
    noise: float
    """Standard deviation of a single pass, relative."""


@dataclass(frozen=True, kw_only=True)
class _Calibration:
    """Results of normal noise of standard deviation 1, for a number of rounds and of passes."""

    pooled: float
    """Mean square of the kept residuals."""
    own: float
    """The same of one pass."""
    level: float
    """Variance of a level."""


def draw_seconds(rounds: Sequence[Mapping[Key, float]]) -> tuple[dict[Key, np.ndarray], Levels]:
    """DRAWS times of each pass that these rounds allow for, the likeliest first; and the levels.

    Raises ValueError where a time is not a positive number.
    """
    keys = list(rounds[0])
    levels = find_levels(np.array([[times[key] for key in keys] for times in rounds], float))
    normals, divisors = _standard_draws(len(keys), levels.freedom)
    logs = levels.logs + levels.errors * normals / divisors[:, None]
    seconds = np.exp(np.clip(logs, -700, 700))  # few rounds allow for anything
    return dict(zip(keys, seconds.T, strict=True)), levels


def estimate_from(draws: np.ndarray, percent: float = 95.0) -> Estimate:
    """The likeliest value with the interval of all draws."""
    beyond = (100 - percent) / 2
    low, high = np.percentile(draws, [beyond, 100 - beyond])
    return Estimate(value=float(draws[0]), low=float(low), high=float(high), is_interval=True)


def find_levels(seconds: np.ndarray) -> Levels:
    """Levels of (round, pass) seconds; raises ValueError where one is not a positive number."""
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise ValueError(f"times have to be positive: {seconds.tolist()}")
    rounds, passes = seconds.shape
    levels, shocks, rest = _polish(np.log(seconds))
    logs = levels + np.median(shocks)
    if rounds == 1 or passes == 1:
        errors = np.full(passes, NOISE_OF_ONE)
        return Levels(logs=logs, errors=errors, freedom=FREEDOM_OF_ONE, noise=NOISE_OF_ONE)
    calibration, freedom = _calibrate(rounds, passes), EFFICIENCY * (rounds - 1) * (passes - 1)
    prior = PRIOR_FREEDOM * PRIOR_NOISE**2
    pooled = freedom * _mean_square(rest) / calibration.pooled + prior
    pooled /= freedom + PRIOR_FREEDOM
    own = OWN_WEIGHT * _mean_squares(rest) / calibration.own
    return Levels(
        logs=logs,
        errors=np.sqrt(calibration.level * np.maximum(pooled, own)),
        freedom=freedom + PRIOR_FREEDOM,
        noise=math.sqrt(pooled),
    )


def _polish(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels by pass, shocks by round, and residuals of (..., round, pass) logarithms."""
    rest = logs.copy()
    levels, shocks = np.zeros(logs.shape[:-2] + logs.shape[-1:]), np.zeros(logs.shape[:-1])
    for _ in range(POLISHES):
        middles = np.median(rest, axis=-2)
        levels, rest = levels + middles, rest - middles[..., None, :]
        middles = np.median(rest, axis=-1)
        shocks, rest = shocks + middles, rest - middles[..., None]
    return levels, shocks, rest


def _mean_square(rest: np.ndarray) -> np.ndarray:
    """Mean square of the smaller residuals of all passes."""
    squares = np.sort(rest.reshape(*rest.shape[:-2], -1) ** 2)
    return squares[..., : math.ceil(KEPT_RESIDUALS * squares.shape[-1])].mean(axis=-1)


def _mean_squares(rest: np.ndarray) -> np.ndarray:
    """By pass, mean square of its residuals; from three rounds on without the greatest one."""
    squares = np.sort(rest**2, axis=-2)
    kept = squares[..., :-1, :] if rest.shape[-2] > 2 else squares
    return kept.mean(axis=-2)


@cache
def _calibrate(rounds: int, passes: int) -> _Calibration:
    shape = (CALIBRATIONS, rounds, passes)
    levels, _, rest = _polish(np.random.default_rng(0).standard_normal(shape))
    levels -= levels.mean(axis=1, keepdims=True)
    return _Calibration(
        pooled=float(_mean_square(rest).mean()),
        own=float(_mean_squares(rest).mean()),
        level=float(levels.var() * passes / (passes - 1)),
    )


@cache
def _standard_draws(passes: int, freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Normal draws (draw, pass), the first of them 0, and the divisors that make them Student's;
    the same in every call, so that figures are reproducible."""
    generator = np.random.default_rng(0)
    normals = generator.standard_normal((DRAWS, passes))
    normals[0] = 0
    return normals, np.sqrt(generator.chisquare(freedom, DRAWS) / freedom)
