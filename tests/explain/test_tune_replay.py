"""experiments/tune: tuners are replayed on recordings, and the tables go into its README."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.tune.recordings import build_recordings
from experiments.tune.replay import score
from experiments.tune.tables import BEGIN, END, README, fill, workload_table
from experiments.tune.tuners import by_race, grid, random_search
from experiments.tune.workloads import WORKLOADS, YOURS, changes_from_yours

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
