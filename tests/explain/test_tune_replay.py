"""experiments/tune: tuners are replayed on recordings, and the tables go into its README."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.tune import budgets, live, tpe
from experiments.tune.recordings import build_recordings
from experiments.tune.replay import score
from experiments.tune.tables import BEGIN, END, README, fill, workload_table
from experiments.tune.tuners import Replay, by_race, grid, random_search
from experiments.tune.workloads import WORKLOADS, YOURS, changes_from_yours, settings_of
from fastloop.core.stats import Ratio
from fastloop.tune.race import RaceResult
from fastloop.tune.race_text import verdict_text

FASTEST = "loader=fastloop torch_threads=1 device_prefetch=0"
SETTINGS = [
    *(f"loader={loader} num_workers={workers} torch_threads=1 device_prefetch={ahead}"
      for loader in ("raw", "getitems", "hdf5", "preload") for workers in (0, 1, 2, 4)
      for ahead in (0, 2)),
    FASTEST,
    "loader=index_loop torch_threads=null device_prefetch=0",
]  # fmt: skip


def recording(best: float = 0.1):
    """Six rounds in which one configuration takes `best` of the time of the others."""
    random = np.random.default_rng(0)
    medians = {YOURS: 1.0} | dict.fromkeys(SETTINGS, 1.0) | {FASTEST: best}
    rounds = [
        {name: value * float(np.exp(0.05 * random.standard_normal())) for name, value in each}
        for each in [[*medians.items()]] * 6
    ]
    records = [{"workload": "tiny data", "round": 0, "failed": {}}]
    for number, seconds in enumerate(rounds, 1):
        costs = dict.fromkeys(seconds, 0.1)
        records.append(
            {"workload": "tiny data", "round": number, "seconds": seconds, "cost_s": costs}
        )
    (built,) = build_recordings(records)
    return built


def test_tuners_are_scored_by_what_they_find_and_cost():
    built = recording()
    assert built.good == {FASTEST}
    assert built.worse_than_yours == set()
    exhaustive, race, search = (
        score(built, tuner, 3) for tuner in (grid, by_race(0.4, None), random_search(0.2))
    )
    assert (exhaustive.good, exhaustive.trials, exhaustive.claims) == (1.0, 1.0, 1.0)
    assert race.good == race.claims == 1.0
    assert race.trials <= 0.4
    assert search.trials <= 0.25


def test_predictions_lead_the_race_to_the_fastest():
    predicted = dict.fromkeys([YOURS, *SETTINGS], 1.0) | {FASTEST: 0.2}
    race = score(recording(), by_race(0.15, predicted), 3)
    assert race.good == 1.0
    assert race.slower == 0.0


def test_changes_are_those_from_the_settings_of_the_user():
    changes = changes_from_yours("tiny data", [YOURS, "loader=raw num_workers=2", FASTEST])
    assert changes[:2] == [frozenset(), frozenset()]  # yours has two workers
    assert changes[2] == {"loader=fastloop", "torch_threads=1", "num_workers=0"}
    assert len({each.name for each in WORKLOADS}) == 12


def test_tables_replace_what_is_between_the_marks():
    page = README.read_text()
    assert fill(page, "new").count("new\n") == 1
    assert fill(fill(page, "old"), "new") == fill(page, "new")
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    assert fill(page, "new").startswith(before)
    assert fill(page, "new").endswith(after)
    with pytest.raises(AssertionError, match="marks"):
        fill("no marks", "new")
    (row,) = workload_table([recording()])[1:]
    assert row[0] == "tiny data"


def test_rounds_beyond_those_recorded_are_drawn_again():
    built = recording()
    replay = Replay(recording=built, generator=np.random.default_rng(0))
    trials = [replay.measure_one(YOURS, number, math.inf) for number in range(2 * built.rounds)]
    assert sorted(trials[: built.rounds]) == sorted(trials[built.rounds :])
    assert sorted(trials[: built.rounds]) == sorted(built.seconds[0])
    assert (replay.rounds, replay.trials) == (12, 12)
    raced = score(built, by_race(0.4, None), 3)
    assert (raced.seeds, raced.rounds > built.rounds) == (3, True)


def test_settings_are_told_apart_by_their_values():
    settings = settings_of("tiny data", [YOURS, FASTEST])
    assert settings[YOURS]["num_workers"] == "2"
    assert settings[FASTEST]["num_workers"] == "0"
    assert {*settings[YOURS]} == {*settings[FASTEST]}


def test_live_claim_and_command_are_those_that_tuning_prints():
    result = RaceResult(
        present=YOURS,
        winner="loader=fastloop",
        seconds={YOURS: {0: 2.0, 1: 2.1}, "loader=fastloop": {0: 1.0, 1: 1.1}},
        confirming=(1,),
        gain=Ratio(estimate=2.0, low=1.9, high=2.25, p_value=0.001),
    )
    text = f"head\n\n{verdict_text(result, True)}\n\ntable\n"
    assert live.read_claim(text) == [2.0, 1.9, 2.25]
    assert live.read_claim(text.replace(" times", "\ntimes")) == [2.0, 1.9, 2.25]
    assert live.read_claim(f"head\n\n{verdict_text(result, False)}\n\n") is None
    assert live.verdict_of(text).startswith("loader=fastloop: 2.00")
    line = "run:    python -m fastloop.run dataset=custom 'dataset.kwargs={a:1,b:2}'\n"
    assert live.recommended(line) == ["dataset=custom", "dataset.kwargs={a:1,b:2}"]
    with pytest.raises(ValueError, match="no command line"):
        live.recommended("nothing")


def test_live_gains_are_confirmed_by_fresh_trials_or_not():
    random = np.random.default_rng(0)
    yours = [float(each) for each in np.exp(0.01 * random.standard_normal(5))]
    found = {"workload": "tokens", "budget_s": 90.0, "took_s": 80.0, "change": ["loader=fastloop"]}
    for factor, claimed, expected in [
        (0.5, [2.0, 1.9, 2.1], "yes"),
        (0.5, [3.0, 2.9, 3.1], "faster, by less"),
        (0.2, [3.0, 2.9, 3.1], "faster, by more"),
        (1.0, [2.0, 1.9, 2.1], "no"),
    ]:
        tuned = [factor * each * (1 + 0.001 * n) for n, each in enumerate(yours)]
        record = found | {"claimed": claimed, "confirmed_s": {YOURS: yours, "tuned": tuned}}
        assert live.live_table([record])[1][-1] == expected
    nothing = found | {"claimed": None, "confirmed_s": {}}
    assert live.live_table([nothing])[1][-3:] == ("none", "none", "nothing claimed")
    failed = {"workload": "tokens", "budget_s": 9.0, "took_s": 8.0, "failed": "too small"}
    assert "failed: too small" in live.live_table([failed])[1]


def test_tuned_configurations_are_judged_by_the_best_of_the_grid():
    cells = [
        {"workload": "tokens", "budget_s": 60.0, "took_s": 50.0, "tuned": [name], "name": name}
        for name in ("near", "far")
    ]
    cells.append({"workload": "tokens", "budget_s": 180.0, "took_s": 9.0, "failed": "no time"})
    rounds = [
        {
            "workload": "tokens",
            "round": number,
            "seconds": {name: each + 0.001 * number for name, each in seconds.items()},
        }
        for number in range(5)
        # Each round was timed again as a whole, as `near` was not known at first.
        for seconds in (
            {"yours": 3.0, "best": 0.5, "far": 1.2},
            {"yours": 3.0, "best": 1.0, "near": 1.04, "far": 1.2},
        )
    ]
    near, far, failed = budgets.table(cells, rounds)[1:]
    assert near[3:] == ("near", "4.0 %", "yes")
    assert far[3:] == ("far", "20.0 %", "no")
    assert failed[3:] == ("no time", "", "no")


def test_grid_has_what_was_recommended_and_many_workers_for_samples_that_wait():
    (waiting,) = [each for each in budgets.WORKLOADS if "sleeping" in each.name]
    tuned = ("loader=raw", "num_workers=3")
    cells = [{"workload": waiting.name, "tuned": [*tuned], "name": "tuned"}]
    jobs = budgets.grid_of(waiting, cells)
    assert jobs["tuned"] == tuned
    assert any("num_workers=32" in overrides for overrides in jobs.values())


@pytest.mark.skipif(not tpe.has_optuna(), reason="needs optuna")
def test_tpe_proposes_candidates_at_the_same_cost():
    built = recording()
    raced, alone = (score(built, tuner(0.4), 2) for tuner in (tpe.race_by_tpe, tpe.tpe_alone))
    assert 0 < raced.trials <= 0.4
    assert alone.trials == pytest.approx(0.4, abs=0.01)
    assert raced.slower == 0.0
