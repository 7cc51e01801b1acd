"""Intervals from few rounds, and verdicts on rounds whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from fastloop.core.parts import Part
from fastloop.explain.certainty import draw_seconds, estimate_from, find_levels
from fastloop.explain.ladder import build_ladder
from fastloop.explain.rung_passes import EpochTimes
from fastloop.explain.verdict import judge

RUNGS = (Part.STEP, Part.COPY, Part.HAND_OFF, Part.COLLATE, Part.DECODE)
CAMPAIGNS = 60


def make_noise(kind: str, rounds: int, generator: np.random.Generator) -> np.ndarray:
    """Logarithms by which passes take longer; `spikes`: every tenth pass up to three times."""
    shape = rounds, len(RUNGS)
    logs = (0.01 if kind == "spikes" else 0.04) * generator.standard_normal(shape)
    if kind == "spikes":
        logs += np.log1p(generator.uniform(0.2, 2, shape) * (generator.random(shape) < 0.1))
    if kind == "drift":
        logs += np.linspace(0, 0.2, rounds)[:, None]
    return logs


def verdicts(kind: str, rounds: int, injected: float) -> list[str]:
    """Words for campaigns in which collating takes that many steps; `right` for the right one."""
    generator = np.random.default_rng(rounds)
    right, words = (Part.COLLATE if injected else Part.STEP), []
    for _ in range(CAMPAIGNS):
        truth = np.array([1, 1, 1.01, 1.02 + injected, 1.03 + injected])
        seconds = truth * np.exp(make_noise(kind, rounds, generator))
        times = [{rung: whole(s) for rung, s in zip(RUNGS, row, strict=True)} for row in seconds]
        word = judge(build_ladder(times, 100, {}), "training", 0.1).word
        words.append("right" if word is right else str(word))
    return words


def whole(seconds: float) -> EpochTimes:
    return EpochTimes(seconds=seconds, batches=100, first_wait_s=0, later_wait_s=0, end_s=0)


@pytest.mark.heavy
@pytest.mark.parametrize("injected", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("rounds", [2, 5])
@pytest.mark.parametrize("kind", ["normal", "drift", "spikes"])
def test_verdicts_are_seldom_wrong_and_mostly_given(kind, rounds, injected):
    words = verdicts(kind, rounds, injected)
    given = words.count("right")
    assert len(words) - given - words.count("unattributed") <= 0.05 * CAMPAIGNS
    if kind != "spikes" or rounds == 5:  # two rounds with a disturbed pass tell little
        assert given >= 0.75 * CAMPAIGNS


@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_intervals_cover_the_truth(rounds):
    generator = np.random.default_rng(rounds)
    covered = 0
    for _ in range(200):
        seconds = [2.0, 3.0, 1.0] * np.exp(0.05 * generator.standard_normal((rounds, 3)))
        draws, _ = draw_seconds([dict(enumerate(row)) for row in seconds])
        estimate = estimate_from(draws[0] / draws[1])
        assert estimate.low <= estimate.value <= estimate.high
        covered += estimate.low <= 2 / 3 <= estimate.high
    assert covered >= 0.93 * 200


def test_what_passes_of_a_round_share_is_no_noise():
    alone = np.array([[1.0, 2.0, 3.0], [1.01, 2.0, 3.0], [1.0, 2.02, 3.0]])
    levels, shared = find_levels(alone), find_levels(alone * [[1.0], [1.5], [3.0]])
    assert shared.noise == pytest.approx(levels.noise)
    assert shared.errors == pytest.approx(levels.errors)
    assert np.diff(shared.logs) == pytest.approx(np.diff(levels.logs))


def test_a_disturbed_pass_changes_no_level():
    seconds = np.tile([1.0, 2.0, 3.0, 4.0], (5, 1))
    seconds[2, 1] = 50
    assert np.exp(find_levels(seconds).logs) == pytest.approx([1, 2, 3, 4])


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(value):
    with pytest.raises(ValueError, match="have to be positive"):
        find_levels(np.array([[1.0, value]]))
