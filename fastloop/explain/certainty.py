"""Draw likely times of interleaved passes, which give differences of passes an interval.

A pass is one measurement, such as of one rung, and a round runs each pass once. A draw is a random
guess at the undisturbed times of all passes. The ladder and its verdict come from the draws.

On the logarithmic scale a time is the level of its pass, plus a shock that all passes of its round
share, plus noise. Median polish (Tukey 1977) finds levels and shocks; the residuals are the noise.
Two rounds tell little about the noise of one pass and more about the noise of six, so the scale of
the noise is pooled; a pass that is noisier keeps its own scale. Scales leave out the greatest
residuals, as one disturbed pass says nothing about the others. A draw of the levels is then a
Student's t variable around the estimated levels. experiments/verdicts/README.md has the shares of
wrong and of withheld verdicts under seven kinds of noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from fastloop.core import stats
from fastloop.core.stats import Estimate

Key = TypeVar("Key")

# Shares of draws decide at 80 % (verdict.py): of 4,000 draws such a share has a standard error of
# sqrt(0.8 * 0.2 / 4000) = 0.6 %.
DRAWS = 4000
CALIBRATIONS = 2000
"""Number of simulated measurements from which a calibration is taken."""
POLISHES = 3
"""Number of repetitions of the median polish."""
KEPT_RESIDUALS = 0.8
"""The common scale is taken from this share of all residuals, the smallest ones."""
# With c = 1.28, the 90 % point of a normal z, the estimate is the mean of z^2 below c^2. To first
# order each residual contributes min(z^2, c^2), which has a variance of 0.39. With 0 in place of
# each z^2 above c^2, the mean of z^2 is 0.35. So the relative variance is 0.39 / 0.35^2 = 3.2 per
# residual. For the variance of all residuals the relative variance is 2, which makes an efficiency
# of 2 / 3.2.
EFFICIENCY = 0.6
"""Degrees of freedom of the common scale, relative to a variance of all normal residuals."""
OWN_WEIGHT = 0.7
"""Factor of a pass's own variance, which only few residuals estimate. The product replaces the
pooled variance if it is greater."""
# Without a prior, the residuals of two rounds that are equal by chance would mean certainty.
PRIOR_NOISE, PRIOR_FREEDOM = 0.03, 1.0
"""Noise that is assumed before any round, and its weight in degrees of freedom."""
NOISE_OF_ONE, FREEDOM_OF_ONE = 0.1, 4.0
"""Noise and degrees of freedom that are assumed for a single round or a single pass, which show no
noise."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Times of passes without the shocks of their rounds."""

    logs: np.ndarray
    """For each pass, the logarithm of its seconds in a round with the median shock."""
    errors: np.ndarray
    """For each pass, the standard error of that logarithm."""
    freedom: float
    """Degrees of freedom of the errors."""
    noise: float
    """Relative standard deviation of a single pass."""


@dataclass(frozen=True, kw_only=True)
class _Calibration:
    """Expected values under normal noise of variance 1, for a number of rounds and of passes."""

    pooled: float
    """Mean square of the kept residuals of all passes."""
    own: float
    """Mean square of the kept residuals of one pass."""
    level: float
    """Variance of a level."""


def draw_seconds(rounds: Sequence[Mapping[Key, float]]) -> tuple[dict[Key, np.ndarray], Levels]:
    """DRAWS draws of the seconds of each pass, the likeliest first; and the levels.

    Raises ValueError if a time is not a positive number.
    """
    keys = list(rounds[0])
    levels = find_levels(np.array([[times[key] for key in keys] for times in rounds], float))
    normals, divisors = _standard_draws(len(keys), levels.freedom)
    logs = levels.logs + levels.errors * normals / divisors[:, None]
    # With little more than one degree of freedom, some draws lie very far out; exp() overflows
    # above 709.
    seconds = np.exp(np.clip(logs, -700, 700))
    return dict(zip(keys, seconds.T, strict=True)), levels


def draw_shares(shares: Sequence[float], count: int, seed: int) -> np.ndarray:
    """Draws of a share of the epoch that each round has measured, the likeliest draw first.

    shares: the share in each round. count: number of draws. seed: other than 0, the seed of the
    draws of the levels. Shares that are drawn with the same seed deviate alike.
    """
    value = stats.median(shares)
    # A single round, or equal shares, show no deviation: half of the value is assumed.
    error = (stats.std(shares) or abs(value) / 2) / len(shares) ** 0.5
    normals = np.random.default_rng(seed).standard_t(len(shares), count)
    # As in draw_seconds, the first draw is the estimate.
    normals[0] = 0
    return value + error * normals


def estimate_from(draws: np.ndarray) -> Estimate:
    """The first draw, which is the likeliest value, with the central 95 % interval of all draws."""
    low, high = np.percentile(draws, [2.5, 97.5])
    return Estimate(value=float(draws[0]), low=float(low), high=float(high), is_interval=True)


def find_levels(seconds: np.ndarray) -> Levels:
    """The levels of passes, from seconds of shape (round, pass).

    Raises ValueError if a time is not positive and finite.
    """
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise ValueError(f"times have to be positive: {seconds.tolist()}")
    rounds, passes = seconds.shape
    levels, shocks, residuals = _polish(np.log(seconds))
    logs = levels + np.median(shocks)
    # With a single round or a single pass, levels and shocks account for all times. No residual is
    # left that would show the noise, so the noise is assumed.
    if rounds == 1 or passes == 1:
        errors = np.full(passes, NOISE_OF_ONE)
        return Levels(logs=logs, errors=errors, freedom=FREEDOM_OF_ONE, noise=NOISE_OF_ONE)
    calibration = _calibrate(rounds, passes)
    freedom = EFFICIENCY * (rounds - 1) * (passes - 1)
    prior = PRIOR_FREEDOM * PRIOR_NOISE**2
    # The mean of the observed variance and the prior's, weighted by their degrees of freedom.
    pooled_variance = freedom * _common_mean_square(residuals) / calibration.pooled + prior
    pooled_variance /= freedom + PRIOR_FREEDOM
    own_variances = OWN_WEIGHT * _mean_square_by_pass(residuals) / calibration.own
    return Levels(
        logs=logs,
        errors=np.sqrt(calibration.level * np.maximum(pooled_variance, own_variances)),
        freedom=freedom + PRIOR_FREEDOM,
        noise=math.sqrt(pooled_variance),
    )


def _polish(logs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels by pass, shocks by round, and residuals of logarithms of shape (..., round, pass)."""
    residuals = logs.copy()
    levels = np.zeros(logs.shape[:-2] + logs.shape[-1:])
    shocks = np.zeros(logs.shape[:-1])
    for _ in range(POLISHES):
        middles = np.median(residuals, axis=-2)
        levels = levels + middles
        residuals = residuals - middles[..., None, :]
        middles = np.median(residuals, axis=-1)
        shocks = shocks + middles
        residuals = residuals - middles[..., None]
    return levels, shocks, residuals


def _common_mean_square(residuals: np.ndarray) -> np.ndarray:
    """Mean square of the smaller residuals of all passes."""
    squares = np.sort(residuals.reshape(*residuals.shape[:-2], -1) ** 2)
    return squares[..., : math.ceil(KEPT_RESIDUALS * squares.shape[-1])].mean(axis=-1)


def _mean_square_by_pass(residuals: np.ndarray) -> np.ndarray:
    """Mean square of the residuals by pass; from three rounds on without the greatest one."""
    squares = np.sort(residuals**2, axis=-2)
    # With two rounds, a single residual would be left without the greatest one.
    kept = squares[..., :-1, :] if residuals.shape[-2] > 2 else squares
    return kept.mean(axis=-2)


@cache
def _calibrate(rounds: int, passes: int) -> _Calibration:
    """Simulate measurements with this number of rounds and passes, to find the expected values."""
    # The values are simulated, because the distribution of residuals after a median polish and a
    # cut has no closed form.
    shape = (CALIBRATIONS, rounds, passes)
    levels, _, residuals = _polish(np.random.default_rng(0).standard_normal(shape))
    # All figures are differences or ratios of passes, which an error that all levels share leaves
    # as they are. Removing the mean takes one degree of freedom.
    levels -= levels.mean(axis=1, keepdims=True)
    return _Calibration(
        pooled=float(_common_mean_square(residuals).mean()),
        own=float(_mean_square_by_pass(residuals).mean()),
        level=float(levels.var() * passes / (passes - 1)),
    )


@cache
def _standard_draws(passes: int, freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Normal draws of shape (draw, pass), and each draw's divisor, which makes it Student's t."""
    # A fixed seed: the same times give the same figures.
    generator = np.random.default_rng(0)
    normals = generator.standard_normal((DRAWS, passes))
    # The first draw is the levels themselves: estimate_from relies on that.
    normals[0] = 0
    return normals, np.sqrt(generator.chisquare(freedom, DRAWS) / freedom)
