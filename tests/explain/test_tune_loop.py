"""fastloop.tune: a loader of the user's own, in this process; loaders move a simulated clock."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch.utils.data import DataLoader

import fastloop
from fastloop.core import time_limits
from fastloop.trial import window
from fastloop.tune import budget, loop_trials, loop_tuning, part_reader


class SimulatedLoaders:
    """Loaders of which a batch takes the given time by a clock of their own."""

    def __init__(self, batches: int, slower_after_s: float = float("inf")) -> None:
        self.batches, self.slower_after_s, self.ns = batches, slower_after_s, 0

    def make(self, batch_s: float, factor: float = 1.0, start_s: float = 0.0):
        """A function of an epoch; its workers start in start_s."""

        def epochs(number: int):
            self.ns += int(1e9 * start_s)
            for batch in torch.arange(4 * self.batches).split(4):
                busy = 3 if self.ns > 1e9 * self.slower_after_s else 1
                self.ns += int(1e9 * busy * batch_s * factor)
                yield batch

        return epochs


def simulate(monkeypatch, loaders: SimulatedLoaders) -> None:
    for module in (time_limits, window, budget, part_reader):
        monkeypatch.setattr(module, "now_ns", lambda: loaders.ns)


@pytest.mark.parametrize("slower_after_s", [float("inf"), 20, 60])
def test_long_epochs_are_cut_and_the_budget_is_kept_on_a_busy_machine(monkeypatch, slower_after_s):
    loaders = SimulatedLoaders(batches=130, slower_after_s=slower_after_s)
    simulate(monkeypatch, loaders)
    space = {"batch_s": [0.1], "factor": [1.0, 4.0, 0.9, 0.25, 0.5, 30.0]}
    tuned = fastloop.tune(loaders.make, space, budget_s=90)
    assert loaders.ns <= 1.05 * 90e9
    assert tuned.settings == {"batch_s": 0.1, "factor": 0.25}
    assert "the first part of an epoch" in repr(tuned)


def test_small_budget_is_refused_soon_and_the_named_one_suffices(monkeypatch):
    loaders = SimulatedLoaders(batches=100)
    simulate(monkeypatch, loaders)
    space = {"batch_s": [1.5], "factor": [1.0, 0.5]}
    with pytest.raises(ValueError, match="budget_s=60 is too short") as refused:
        fastloop.tune(loaders.make, space, budget_s=60)
    assert loaders.ns <= 10e9
    found = re.search(r"allowed: from (\d+)", str(refused.value))
    assert found
    loaders.ns, named_s = 0, int(found[1])
    assert fastloop.tune(loaders.make, space, budget_s=named_s).settings["factor"] == 0.5
    assert loaders.ns <= 1e9 * named_s


def test_script_that_has_taken_most_of_a_budget_is_tuned_in_the_rest(monkeypatch):
    loaders = SimulatedLoaders(batches=100)
    simulate(monkeypatch, loaders)
    settings = {name: {"batch_s": 1.5, "factor": each} for name, each in (("yours", 1), ("b", 0.5))}
    trials = trials_of(loaders, settings, budget_s=60, fewest_trials=2)
    spending = budget.Spending(budget=budget.TuneBudget(seconds=60))
    tuned = loop_tuning.race_loaders(trials, spending, lambda _: None)
    assert {*tuned.race.seconds} == {*settings}
    assert "No answer yet: b was 2.00 times as fast as yours in 1 round" in repr(tuned)
    assert loaders.ns <= 60e9


def trials_of(loaders: SimulatedLoaders, settings, **given) -> loop_trials.LoopTrials:
    return loop_trials.LoopTrials(
        make_loader=loaders.make,
        settings=settings,
        step=lambda batch: None,
        device=torch.device("cpu"),
        same_data=True,
        min_window_s=0.0,
        **given,
    )


def test_start_of_workers_weighs_as_in_a_whole_epoch(monkeypatch):
    loaders = SimulatedLoaders(batches=1000)
    simulate(monkeypatch, loaders)
    # An epoch takes 51.5 s, or 26.5 s; of a part that takes 2 s the start would be the half.
    space = {"batch_s": [0.05, 0.025], "start_s": [1.5]}
    make_loader = lambda batch_s, start_s: ReadsLater(loaders, batch_s, start_s)  # noqa: E731
    tuned = fastloop.tune(make_loader, space, budget_s=120)
    assert tuned.settings == {"batch_s": 0.025, "start_s": 1.5}
    assert tuned.race.gain.estimate == pytest.approx(51.5 / 26.5, rel=0.02)


def test_what_is_expected_to_be_fastest_runs_in_the_first_round(monkeypatch):
    loaders, steps = SimulatedLoaders(batches=130), list[str]()
    simulate(monkeypatch, loaders)
    factors = [*(1 + number / 1000 for number in range(39)), 0.25]
    settings = {f"factor={each}": {"batch_s": 0.1, "factor": each} for each in factors}
    trials = trials_of(loaders, settings, budget_s=90)
    expected = dict.fromkeys(settings, 1.0) | {"factor=0.25": 0.1}
    spending = budget.Spending(budget=budget.TuneBudget(seconds=90))
    tuned = loop_tuning.race_loaders(trials, spending, steps.append, expected)
    # A first look, the first trial of the present settings, and a round of at most nine.
    assert "factor=0.25" in steps[:11]
    assert tuned.settings["factor"] == 0.25


class ReadsLater:
    """A loader that starts its workers in iter(), and has a length."""

    def __init__(self, loaders: SimulatedLoaders, batch_s: float, start_s: float) -> None:
        self.loaders, self.batch_s, self.start_s = loaders, batch_s, start_s

    def __len__(self) -> int:
        return self.loaders.batches

    def __iter__(self):
        self.loaders.ns += int(1e9 * self.start_s)
        return self.loaders.make(self.batch_s)(0)


def test_random_samples_are_compared_by_their_number():
    class Random(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            return torch.rand(3)

    samples = Random()
    tuned = fastloop.tune(
        lambda batch_size: DataLoader(samples, batch_size), {"batch_size": [1, 32]}, min_window_s=0
    )
    assert not tuned.reasons
    assert "Only the numbers of samples were compared" in repr(tuned)


def test_loop_is_tuned_in_this_process():
    def make_loader(batch_size, drop_last):
        return DataLoader(torch.arange(80), batch_size=batch_size, drop_last=drop_last)

    space = {"batch_size": [1, 40], "drop_last": [False]}
    # An epoch takes 0.2 ms: a window of one, in which another process runs for some ms, would make
    # the slower configuration the faster one of that round.
    tuned = fastloop.tune(make_loader, space, budget_s=120, min_window_s=0.05)
    assert tuned.settings == {"batch_size": 40, "drop_last": False}
    assert tuned.is_faster
    assert tuned.race.gain.low > 1
    assert tuned.code == "loader = make_loader(batch_size=40, drop_last=False)"
    assert tuned.code in repr(tuned)
    frame = tuned.to_frame().set_index("batch_size")
    assert [*frame[frame["is_winner"]].index] == [40]
    assert frame.loc[1, "ratio_low"] > 1
    assert json.loads(tuned.to_json())["settings"] == tuned.settings
    assert tuned._repr_html_().count("<tr>") == 3  # the head and two configurations


def test_loop_settings_that_fail_or_deliver_other_data_are_left_out():
    def make_loader(count):
        if count == 3:
            raise ValueError("no such count")
        return DataLoader(torch.arange(count), batch_size=4)

    tuned = fastloop.tune(make_loader, {"count": [8, 3, 7]}, budget_s=120, min_window_s=0)
    assert tuned.settings == {"count": 8}
    assert not tuned.is_faster
    assert "no such count" in tuned.reasons["count=3"]
    assert "other data" in tuned.reasons["count=7"]


def test_wrong_spaces_of_a_loop_are_named():
    with pytest.raises(ValueError, match="space: make_loader has no argument workers"):
        fastloop.tune(lambda batch_size: [], {"workers": [1]})
    with pytest.raises(ValueError, match=r"space=\{\}: allowed"):
        fastloop.tune(lambda batch_size: [], {})
    with pytest.raises(ValueError, match=r"space: 10,000 combinations; allowed: up to 2,000"):
        fastloop.tune(lambda a, b: [], {"a": range(100), "b": range(100)})
    with pytest.raises(ValueError, match="budget_s=0"):
        fastloop.tune(lambda batch_size: [], {"batch_size": [1]}, budget_s=0)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"budget_s": "5min"}, ValueError, "budget_s='5min': allowed is a number of seconds"),
        ({"budget_s": None}, ValueError, "budget_s=None: allowed is a number of seconds"),
        ({"min_window_s": "a"}, ValueError, "min_window_s='a': allowed is 0 or more"),
        ({"make_loader": 5}, TypeError, "make_loader=5: allowed is a function that returns"),
        ({"step": 5}, TypeError, "step=5: allowed is a function of a batch"),
        ({"space": {"batch_size": 5}}, ValueError, "space={'batch_size': 5}: allowed: a dict"),
        ({"space": ["batch_size"]}, ValueError, "space=\\['batch_size'\\]: allowed: a dict"),
    ],
)
def test_wrong_settings_of_tune_are_named(settings, error, message):
    given = {"make_loader": lambda batch_size: [], "space": {"batch_size": [1]}} | settings
    with pytest.raises(error, match=f"^{message}"):
        fastloop.tune(**given)
