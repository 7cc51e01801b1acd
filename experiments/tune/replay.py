"""Replay tuners on the recordings, with many seeds each: how good are their results, and at what
cost?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from threadpoolctl import threadpool_limits

from experiments.tune import tpe
from experiments.tune.recordings import Recording, all_alike
from experiments.tune.tuners import (
    TRIALS,
    Replay,
    Tuner,
    by_race,
    grid,
    once_each,
    random_search,
    textbook,
)

FEWER, FEWER_BY_TPE = 5, 20
"""Budgets beyond the first are replayed with FEWER times fewer seeds, and Optuna, which takes a
hundred times as long, with FEWER_BY_TPE times fewer."""
SHARES = (0.1, 0.2, 0.4)
Predicted = Mapping[str, float]
"""Name of a configuration -> the seconds that the model predicts."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """The results of a tuner on one recording over all seeds. Without another unit, they are shares
    of the seeds."""

    good: float
    slower: float
    claims: float
    trials: float
    cost: float
    """Cost in seconds relative to the exhaustive grid; `trials` is the cost in trials, likewise."""
    regret: float
    """Time of the recommended configuration relative to the best one, minus 1, median over the
    seeds."""
    rounds: float
    """Mean number of rounds that a replay has drawn."""
    seeds: int


Scores = dict[str, Score]
"""Name of a tuner -> its score."""


def replay_all(
    recordings: Sequence[Recording],
    predicted: Mapping[str, Predicted],
    seeds: int,
    processes: int | None = None,
) -> list[tuple[Scores, Scores]]:
    """The scores on each recording, and on recordings in which all configurations are equally fast.

    predicted: workload -> predictions; a workload without predictions is raced without a model.
    processes: their number; None: as many as cores.
    """
    work = [(each, predicted.get(each.workload), seeds) for each in recordings]
    with get_context("fork").Pool(processes, initializer=threadpool_limits, initargs=(1,)) as pool:
        return pool.starmap(score_all, work, chunksize=1)


def score_all(
    recording: Recording, predicted: Predicted | None, seeds: int
) -> tuple[Scores, Scores]:
    """The scores of all tuners on a recording, and on recordings in which all configurations are
    equally fast."""
    few = max(1, seeds // FEWER)
    races = {
        f"race, {'with the model' if known else 'without a model'}, {100 * share:.0f} %": (
            by_race(share, known),
            seeds if share == SHARES[0] else few,
        )
        for share in SHARES
        for known in ([predicted, None] if predicted else [None])
    }
    plain = {
        f"race, each configuration by itself, {100 * share:.0f} %": (
            by_race(share, None, shares_settings=False),
            few,
        )
        for share in SHARES
    }
    searches = {
        f"random search, {100 * share:.0f} %": (random_search(share), seeds) for share in SHARES
    }
    others: dict[str, tuple[Tuner, int]] = {
        "six configurations once each": (once_each(6), seeds),
        "textbook": (textbook, seeds),
        "exhaustive grid": (grid, seeds),
    }
    tuners = races | plain | searches | others | _tuners_by_tpe(max(1, seeds // FEWER_BY_TPE))
    real = {name: score(recording, *each) for name, each in tuners.items()}
    unjudged = ("with the model", "TPE", "textbook")
    claiming = [name for name in tuners if not any(each in name for each in unjudged)]
    alike = {name: score(recording, *tuners[name], alike=True) for name in claiming}
    return real, alike


def _tuners_by_tpe(seeds: int) -> dict[str, tuple[Tuner, int]]:
    """The tuners that need Optuna; empty if it is not installed."""
    if not tpe.has_optuna():
        return {}
    share = SHARES[0]
    return {
        f"race among candidates of Optuna's TPE, {100 * share:.0f} %": (
            tpe.race_by_tpe(share),
            seeds,
        ),
        f"Optuna's TPE alone, {100 * share:.0f} %": (tpe.tpe_alone(share), seeds),
    }


def score(recording: Recording, tuner: Tuner, seeds: int, alike: bool = False) -> Score:
    """The score of a tuner. alike: each seed gets a recording in which all configurations are
    equally fast."""
    exhaustive = TRIALS * len(recording.names), TRIALS * recording.cost_s.sum()
    rows = []
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        used = all_alike(recording, generator) if alike else recording
        replay = Replay(recording=used, generator=generator)
        chosen = tuner(replay)
        rows.append(
            (
                chosen.name in recording.good,
                chosen.name in recording.worse_than_yours,
                chosen.claims_gain,
                replay.trials / exhaustive[0],
                replay.cost_s / exhaustive[1],
                recording.median_of(chosen.name) / recording.medians.min() - 1,
                replay.rounds,
            )
        )
    columns = np.array(rows, float)
    good, slower, claims, trials, cost, _, rounds = columns.mean(axis=0).tolist()
    return Score(
        good=good,
        slower=slower,
        claims=claims,
        trials=trials,
        cost=cost,
        regret=float(np.median(columns[:, 5])),
        rounds=rounds,
        seeds=seeds,
    )
