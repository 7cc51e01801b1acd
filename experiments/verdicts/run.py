"""Verdicts of `fastloop explain` on simulated rounds with a known truth.

A ladder of six rungs: a step of 1 s, five parts of 0 to 2 % of it, and one of them slower by 0,
0.3, 1 or 3 steps. Each pass is multiplied by noise; see `make_noise`.

    python -m experiments.verdicts.run [campaigns]
"""

import sys

import numpy as np

from fastloop.core.parts import Part
from fastloop.explain.ladder import build_ladder
from fastloop.explain.rung_passes import EpochTimes
from fastloop.explain.verdict import is_undecided, judge

RUNGS = (Part.STEP, Part.COPY, Part.HAND_OFF, Part.COLLATE, Part.TRANSFORM, Part.DECODE)
KINDS = ("normal 2 %", "normal 5 %", "drift", "heavy", "skewed", "spikes", "one noisy")
ROUNDS = (1, 2, 3, 5, 10)
INJECTED = (0, 0.3, 1, 3)


def make_noise(kind, generator, rounds):
    """Logarithms of the noise, with shape (round, rung).

    drift: normal noise of 5 %, a drift of +10 % over the rounds, and in each round a shock of 10 %
    that its passes share. heavy: Student's t with 3 degrees of freedom, and one pass in ten takes
    30 to 50 % longer. skewed: exponential noise of 8 %. spikes: 1 %, and one pass in ten takes 20
    to 200 % longer. one noisy: 2 %, and 10 % in one rung.
    """
    shape = rounds, len(RUNGS)
    normal = generator.standard_normal(shape)
    if kind == "heavy":
        spikes = generator.uniform(0.3, 0.5, shape) * (generator.random(shape) < 0.1)
        return 0.03 * generator.standard_t(3, shape) + np.log1p(spikes)
    if kind == "skewed":
        return generator.exponential(0.08, shape)
    if kind == "spikes":
        spikes = generator.uniform(0.2, 2, shape) * (generator.random(shape) < 0.1)
        return 0.01 * normal + np.log1p(spikes)
    if kind == "one noisy":
        normal[:, generator.integers(len(RUNGS))] *= 5
        return 0.02 * normal
    if kind == "drift":
        shocks = np.linspace(0, 0.1, rounds) + 0.1 * generator.standard_normal(rounds)
        return 0.05 * normal + shocks[:, None]
    return (0.02 if kind == "normal 2 %" else 0.05) * normal


def judge_campaign(kind, generator, rounds, injected):
    """Judge simulated rounds. Returns (the verdict is right, it is unattributed, the interval of
    the wait contains the truth)."""
    parts = generator.uniform(0, 0.02, len(RUNGS) - 1)
    place = generator.integers(1, len(parts))
    parts[place] += injected
    truth = 1 + np.concatenate([[0], np.cumsum(parts)])
    timed = [
        {rung: whole_epoch(s) for rung, s in zip(RUNGS, row, strict=True)}
        for row in truth * np.exp(make_noise(kind, generator, 2 * rounds))
    ]
    ladder = build_ladder(timed[:rounds], 100, {})
    if is_undecided(ladder):
        ladder = build_ladder(timed, 100, {})
    word = judge(ladder, "training", 0.1).word
    wait = ladder.wait_share
    right = RUNGS[place + 1] if injected else Part.STEP
    return word is right, word is Part.UNATTRIBUTED, wait.low <= 1 - 1 / truth[-1] <= wait.high


def whole_epoch(seconds):
    return EpochTimes(seconds=seconds, batches=100, first_wait_s=0, later_wait_s=0, end_s=0)


def main(campaigns):
    print("| noise | rounds | healthy | 0.3 steps | 1 step | 3 steps | coverage |")
    print("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for rounds in ROUNDS:
            cells, covered = [], []
            for injected in INJECTED:
                generator = np.random.default_rng([rounds, KINDS.index(kind)])
                outcomes = [
                    judge_campaign(kind, generator, rounds, injected) for _ in range(campaigns)
                ]
                right, unattributed, covers = 100 * np.mean(outcomes, axis=0)
                cells.append(f"{100 - right - unattributed:.1f} / {unattributed:.0f}")
                covered.append(covers)
            row = (kind, rounds, *cells, f"{np.mean(covered):.1f}")
            print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 300)
