"""Replay tuners on the recordings, many seeds each: what each reaches, and at what cost."""

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
"""Budgets beyond the first are replayed with so many times fewer seeds, and Optuna, which takes a
hundred times as long."""
SHARES = (0.1, 0.2, 0.4)
Predicted = Mapping[str, float]
"""Seconds of each configuration by the model."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a tuner has reached on one recording over all seeds, as shares of them."""

    good: float
    slower: float
    claims: float
    trials: float
    cost: float
    """Relative to the exhaustive grid, in seconds; `trials` likewise in trials."""
    regret: float
    """Median time of the recommended configuration relative to the best one's, less 1."""
    rounds: float
    """Mean number of rounds that a replay has drawn."""
    seeds: int


Scores = dict[str, Score]
"""By tuner."""


def replay_all(
    recordings: Sequence[Recording],
    predicted: Mapping[str, Predicted],
    seeds: int,
    processes: int | None = None,
) -> list[tuple[Scores, Scores]]:
    """The scores on each recording, and on ones in which nothing differs.

    predicted: by workload; a workload without predictions is raced without a model. processes:
    None: as many as cores.
    """
    work = [(each, predicted.get(each.workload), seeds) for each in recordings]
    with get_context("fork").Pool(processes, initializer=threadpool_limits, initargs=(1,)) as pool:
        return pool.starmap(score_all, work, chunksize=1)


def score_all(
    recording: Recording, predicted: Predicted | None, seeds: int
) -> tuple[Scores, Scores]:
    """The scores of all tuners on a recording, and on ones in which nothing differs."""
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
    """The tuners that need Optuna; none where it is not installed."""
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
    """The score of a tuner. alike: every seed has a recording in which nothing differs."""
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
