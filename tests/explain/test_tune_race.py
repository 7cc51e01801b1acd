"""The race of `fastloop tune` on simulated tables: known answers, false winners, and the guard."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fastloop.core.stats import MINIMUM_EFFECT, Ratio
from fastloop.tune.outcome import TuneOutcome, format_outcome
from fastloop.tune.race import (
    FEWEST_CONFIRMING,
    NoRoomError,
    PresentFailedError,
    RaceResult,
    RaceRules,
    race,
)
from fastloop.tune.race_text import verdict_text
from fastloop.tune.surrogate import Surrogate, estimate_noise
from fastloop.tune.tune_file import TuneFile

PRESENT = "yours"


class Table:
    """Costs of configurations with noise that a round shares, and noise of each trial."""

    def __init__(self, seconds: dict[str, float], seed: int, noise: float = 0.05) -> None:
        self.seconds, self.noise = seconds, noise
        self.random = np.random.default_rng(seed)
        self.spent, self.shocks = 0.0, dict[int, float]()
        self.rounds: list[list[str]] = []

    def measure(self, name, number, _room):
        if number == len(self.rounds):
            self.rounds.append([])
            self.shocks[number] = self.noise * self.random.standard_normal()
        self.rounds[number].append(name)
        noise = self.shocks[number] + self.noise * self.random.standard_normal()
        drawn = self.seconds[name] * math.exp(noise)
        self.spent += drawn
        return drawn

    def race(self, budget: float, **rules) -> RaceResult:
        spent = lambda: self.spent / budget  # noqa: E731
        return race(surrogate([*self.seconds]), self.measure, spent, RaceRules(**rules))


def surrogate(names: list[str], predicted: list[float] | None = None) -> Surrogate:
    """Configurations of which nothing is known, or their predictions."""
    changes = [frozenset({name} - {PRESENT}) for name in names]
    return Surrogate(names=names, changes=changes, predicted=predicted or [1.0] * len(names))


def table(count: int, seed: int, spread: float = 0.4, noise: float = 0.05) -> Table:
    random = np.random.default_rng(seed)
    levels = np.exp(spread * random.standard_normal(count))
    others = {f"candidate {number}": float(level) for number, level in enumerate(levels)}
    return Table({PRESENT: 1.0} | others, seed, noise)


def test_fastest_is_found_where_there_is_no_noise():
    for seed in range(20):
        drawn = table(40, seed, noise=0.0)
        result = drawn.race(budget=400)
        assert result.winner == min(drawn.seconds, key=drawn.seconds.__getitem__)
        assert result.gain is not None
        assert result.gain.estimate == pytest.approx(1 / drawn.seconds[result.winner])
        assert result.is_faster


@pytest.mark.heavy
def test_winner_is_among_the_best_and_the_gain_is_true():
    near, covered, runs = 0, 0, 200
    for seed in range(runs):
        drawn = table(30, seed)
        result = drawn.race(budget=150)
        near += drawn.seconds[result.winner] <= 1.05 * min(drawn.seconds.values())
        assert result.gain is not None
        truth = 1 / drawn.seconds[result.winner]
        covered += result.gain.low <= truth <= result.gain.high
    assert near >= 0.95 * runs
    assert covered >= 0.9 * runs  # of 95 % intervals of five rounds


@pytest.mark.heavy
@pytest.mark.nightly
def test_alike_configurations_seldom_have_a_winner():
    runs = 300
    wins = sum(
        table(30, seed, spread=0.0, noise=0.1).race(budget=120).is_faster for seed in range(runs)
    )
    assert wins <= 0.05 * runs


@pytest.mark.heavy
def test_what_is_recommended_is_hardly_ever_slower():
    runs, slower = 200, 0
    for seed in range(runs):
        drawn = table(20, seed, noise=0.15)
        drawn.seconds[PRESENT] = 0.9 * min(drawn.seconds.values())
        slower += drawn.race(budget=60).is_faster
    assert slower <= 0.01 * runs


@pytest.mark.parametrize("first", [(), ("loader",)])
def test_first_names_run_although_hundreds_promise_more(first):
    others = {f"workers {number}": 1.0 for number in range(300)}
    drawn = Table({PRESENT: 1.0, **others, "loader": 0.15}, seed=0)
    predicted = [1.0] + [0.5] * len(others) + [0.75]
    known = surrogate([*drawn.seconds], predicted)
    spent = lambda: drawn.spent / 30  # noqa: E731
    result = race(known, drawn.measure, spent, RaceRules(first=first))
    assert result.is_faster == bool(first)
    assert ("loader" in result.seconds) == bool(first)


def test_first_names_leave_half_of_each_round_to_others():
    drawn = table(40, 1)
    first = tuple(f"candidate {number}" for number in range(10, 20))
    drawn.race(budget=200, first=first)
    begun = drawn.rounds[1:4]
    assert all(1 <= len({*names} & {*first}) <= math.ceil(len(names) / 2) for names in begun)
    assert all({*names} - {*first, PRESENT} for names in begun)


def test_present_configuration_runs_in_every_round():
    drawn = table(25, 3)
    drawn.race(budget=100)
    assert all(PRESENT in names for names in drawn.rounds)


def test_confirming_rounds_are_none_of_the_race():
    result = table(12, 5).race(budget=200, confirming=6)
    rounds = {number for values in result.seconds.values() for number in values}
    assert len(result.confirming) == 6
    assert min(result.confirming) == max(rounds) - 5
    compared = result.compare(PRESENT)
    assert compared is not None
    assert compared != result.gain


@pytest.mark.parametrize("budget", [1, 5, 12, 20, 60, 250, 10_000])
def test_budget_is_kept_and_has_room_for_confirming(budget):
    for seed in range(20):
        drawn = table(40, seed)
        result = drawn.race(budget=budget)
        assert drawn.spent <= budget + max(drawn.seconds.values())
        assert {*result.seconds, *result.not_run} == {*drawn.seconds}
        if result.winner != PRESENT and not result.is_cut:
            assert len(result.confirming) >= FEWEST_CONFIRMING
            assert result.gain is not None
        assert not (result.is_cut and result.is_faster)


@pytest.mark.parametrize("budget", [5, 12, 60, 250])
def test_budget_is_kept_also_if_the_machine_becomes_busy(budget):
    cut = 0
    for seed in range(20):
        drawn = table(40, seed)
        slow_from = budget * seed / 20  # from then on trials take 30 times as long

        def measure(name, number, room, drawn=drawn, slow_from=slow_from):
            before = drawn.spent
            cost = drawn.measure(name, number, room) * (30 if before >= slow_from else 1)
            drawn.spent = before + min(cost, room * budget)
            if cost <= room * budget:
                return cost
            # It was stopped, as a process with a limit of time is.
            if name == PRESENT:
                raise NoRoomError
            return None

        spent = lambda drawn=drawn: drawn.spent / budget  # noqa: E731
        try:
            result = race(surrogate([*drawn.seconds]), measure, spent)
        except NoRoomError:
            assert not slow_from
            assert drawn.spent <= budget
            continue
        # A trial that was promised room for a usual one may take twice as long.
        usual = 1.3 * max(drawn.seconds[name] for name in result.seconds)
        assert drawn.spent <= budget + 2 * usual
        assert PRESENT in result.seconds
        assert not (result.is_cut and result.is_faster)
        assert verdict_text(result, result.is_faster)
        cut += result.is_cut
    assert cut


def test_first_trials_that_cost_more_leave_room_for_confirming():
    for seed in range(20):
        drawn = table(40, seed)
        begun = set[str]()

        def measure(name, number, room, drawn=drawn, begun=begun):
            drawn.spent += 0.0 if name in {PRESENT, *begun} else 6.0  # its store is written
            begun.add(name)
            return drawn.measure(name, number, room)

        spent = lambda drawn=drawn: drawn.spent / 120  # noqa: E731
        result = race(surrogate([*drawn.seconds]), measure, spent)
        assert drawn.spent <= 120 + 6 + max(drawn.seconds.values())
        assert result.winner == PRESENT or result.gain is not None


def test_each_trial_is_given_the_room_that_there_is():
    drawn, rooms = table(10, 0), list[tuple[str, float]]()

    def measure(name, number, room):
        rooms.append((name, room))
        assert 0 < room <= 1
        return drawn.measure(name, number, room)

    race(surrogate([*drawn.seconds]), measure, lambda: drawn.spent / 60)
    assert rooms[0] == (PRESENT, 1)


def test_failed_configurations_leave_the_race():
    drawn = table(10, 1, noise=0.0)
    best = min(drawn.seconds, key=drawn.seconds.__getitem__)

    def measure(name, number, room):
        cost = drawn.measure(name, number, room)
        return cost if name != best or number < 2 else None

    result = race(surrogate([*drawn.seconds]), measure, lambda: drawn.spent / 300)
    assert result.winner != best


@pytest.mark.parametrize("budget", [9.0, 60.0])
def test_configurations_that_can_not_run_end_no_race_and_cost_no_trial(budget):
    others = [f"candidate {number}" for number in range(12)]
    drawn = Table({PRESENT: 1.0} | dict.fromkeys(others, 0.5), 0, noise=0.0)

    def measure(name, number, room):
        # All but the last one are ruled out by their data, at once.
        return drawn.measure(name, number, room) if name in (PRESENT, others[-1]) else None

    predicted = [1.0, *([0.5] * 11), 0.6]
    known = surrogate([*drawn.seconds], predicted)
    result = race(known, measure, lambda: drawn.spent / budget)
    assert result.winner == others[-1]
    assert result.gain is not None
    assert all({PRESENT, others[-1]} == {*names} for names in drawn.rounds[1:])


@pytest.mark.parametrize("last", [0, 1, 2])
def test_present_configuration_must_run(last):
    drawn = table(10, 1)

    def measure(name, number, room):
        return None if name == PRESENT and number >= last else drawn.measure(name, number, room)

    with pytest.raises(PresentFailedError, match="yours"):
        race(surrogate([*drawn.seconds]), measure, lambda: sum(map(len, drawn.rounds)) / 1000)


def test_present_configuration_that_fails_after_all_others_ends_the_race():
    others = [f"candidate {number}" for number in range(4)]
    drawn = Table(dict.fromkeys([PRESENT, *others], 1.0), 0)

    def measure(name, number, room):
        return None if number else drawn.measure(name, number, room)

    with pytest.raises(PresentFailedError, match="yours"):
        race(surrogate([*drawn.seconds]), measure, lambda: drawn.spent / 100)


@pytest.mark.parametrize(
    ("gain", "is_undecided", "begins"),
    [
        (Ratio(estimate=99.5, low=0.53, high=347.8, p_value=0.07), True, "No answer yet: other se"),
        (
            Ratio(estimate=1.03, low=0.98, high=1.1, p_value=0.3),
            False,
            "Nothing else that was tried is",
        ),
        (Ratio(estimate=2.0, low=1.9, high=2.1, p_value=0.001), False, "other: 2.00 [1.90, 2.10]"),
    ],
)
def test_great_gain_that_rounds_on_a_busy_machine_do_not_confirm_is_no_refutation(
    gain, is_undecided, begins
):
    costs = {PRESENT: {0: 2.0, 1: 2.0}, "other": {0: 1.0, 1: 1.0}}
    result = RaceResult(present=PRESENT, winner="other", seconds=costs, confirming=(1,), gain=gain)
    assert result.is_undecided == is_undecided
    assert verdict_text(result, result.is_faster).startswith(begins)


def noisy_race(seed: int, count: int, most: int) -> tuple[RaceResult, set[tuple[str, int]]]:
    """A race of at most about so many trials, and its trials, each with the same cost in any race:
    a resumed race repeats them."""
    names = [PRESENT, *(f"candidate {number}" for number in range(count))]
    trials = set()

    def measure(name, number, _room):
        trials.add((name, number))
        drawn = np.random.default_rng([seed, number, names.index(name)]).standard_normal()
        return (1.0 if name == PRESENT else 0.8) * math.exp(0.35 * drawn)

    return race(surrogate(names), measure, lambda: len(trials) / most), trials


def test_race_is_unfinished_where_a_larger_budget_has_further_trials():
    found = set()
    for seed, most in product(range(8), (8, 11, 14, 30)):
        result, trials = noisy_race(seed, 1 + seed % 2, most)
        if result.is_undecided:
            _, of_larger = noisy_race(seed, 1 + seed % 2, 1_000)
            assert result.is_unfinished == bool(of_larger - trials), (seed, most)
            found.add(result.is_unfinished)
    assert found == {False, True}


@pytest.mark.parametrize(
    ("is_unfinished", "ends"),
    [
        (True, " Nothing is lost: budget=90s and resume=last go on from here."),
        (False, " these rounds differ too much. A quieter machine may tell."),
    ],
)
def test_larger_budget_is_named_only_if_the_race_would_go_on(is_unfinished, ends):
    result = RaceResult(
        present=PRESENT,
        winner="other",
        seconds={PRESENT: {0: 2.0, 1: 2.0}, "other": {0: 1.0, 1: 1.0}},
        confirming=(1,),
        gain=Ratio(estimate=1.5, low=0.5, high=3.5, p_value=0.3),
        is_unfinished=is_unfinished,
    )
    outcome = TuneOutcome(
        race=result,
        objective="epoch",
        label="raw",
        file=TuneFile(
            command="",
            jobs=[[], ["other"]],
            changes=[[], ["other"]],
            forecast_mib=[None, None],
            left_out={},
            predicted=[1.0, 1.0],
            trial_s=1.0,
            notes=[],
            combinations=1,
            exhaustive=1,
        ),
        reasons={},
        peak_mib={},
        seconds_used=1.0,
        trials=4,
        larger_budget="budget=90s",
    )
    assert f"{ends} configuration" in " ".join(format_outcome(outcome).split())
    failed = replace(outcome, reasons=dict.fromkeys(result.seconds, "failed in a later round"))
    assert "not run" not in format_outcome(failed)


def test_race_without_room_claims_nothing():
    result = table(10, 0).race(budget=1)
    assert [*result.seconds] == [PRESENT]
    assert result.is_cut
    assert verdict_text(result, result.is_faster).startswith("No answer yet: the budget ended")


def test_race_of_one_configuration_is_whole():
    result = Table({PRESENT: 1.0}, 0).race(budget=1)
    assert not result.is_cut
    assert verdict_text(result, False).startswith("Nothing was tried beside yours: nothing else")


@pytest.mark.parametrize("budget", [3.0, 3.5, 4.5, 6.5, 7.5, 9.0, 12.0])
def test_short_race_tries_what_there_is_room_for(budget):
    drawn = Table({PRESENT: 1.0, "other": 0.5}, 0, noise=0.0)
    result = drawn.race(budget=budget)
    assert drawn.spent <= budget
    assert {*result.seconds} == {PRESENT, "other"}
    assert result.is_faster is not result.is_cut
    assert result.is_cut is (len(result.confirming) < FEWEST_CONFIRMING)
    if result.is_cut:
        text = verdict_text(result, result.is_faster)
        assert text.startswith("No answer yet: other was 2.00 times as fast as yours in ")


def crossed_table(seed: int) -> tuple[Table, Surrogate]:
    """Sixty crossings of five loaders, four numbers of workers and three of threads, of which the
    model predicts each within about 30 %."""
    random = np.random.default_rng(seed)
    names, changes, logs = [], [], []
    effects = [0.6 * random.standard_normal(5), *(0.3 * random.standard_normal(k) for k in (4, 3))]
    together = 0.2 * random.standard_normal((5, 4))
    for places in np.ndindex(5, 4, 3):
        change = {f"{axis}={place}" for axis, place in enumerate(places) if place}
        names.append(" ".join(sorted(change)) or PRESENT)
        changes.append(frozenset(change))
        logs.append(sum(map(lambda of, at: of[at], effects, places)) + together[places[:2]])
    predicted = np.exp(np.array(logs) + 0.3 * random.standard_normal(len(logs)))
    drawn = Table(dict(zip(names, np.exp(logs).tolist(), strict=True)), seed, noise=0.1)
    return drawn, Surrogate(names=names, changes=changes, predicted=predicted.tolist())


def test_crossed_settings_need_a_tenth_of_the_exhaustive_trials():
    near, runs, exhaustive = 0, 60, 60 * 20
    for seed in range(runs):
        drawn, known = crossed_table(seed)
        count = lambda drawn=drawn: sum(map(len, drawn.rounds)) / (0.1 * exhaustive)  # noqa: E731
        result = race(known, drawn.measure, count)
        near += drawn.seconds[result.winner] <= 1.05 * min(drawn.seconds.values())
        assert sum(map(len, drawn.rounds)) <= 0.1 * exhaustive
    assert near >= 0.9 * runs


def test_predictions_decide_what_runs_first():
    names = [PRESENT, *(f"candidate {number}" for number in range(20))]
    known = surrogate(names, [1.0] * 11 + [0.5] + [1.0] * 9)
    assert known.shortlist(3)[0] == "candidate 10"
    assert len(known.shortlist(100)) == 20


def test_trial_of_a_setting_tells_of_others_with_it():
    names = [PRESENT, "a", "b", "a c", "b c"]
    changes = [frozenset(name.split()) for name in ("", *names[1:])]
    known = Surrogate(names=names, changes=changes, predicted=[1.0] * 5)
    posterior = known.fit({PRESENT: {0: 1.0}, "a": {0: 0.5}, "b": {0: 1.0}})
    assert posterior.mean[3] < posterior.mean[4]
    assert known.choose(posterior, 1, excluded=("a",)) == ["a c"]


def test_noise_is_that_of_repeated_trials():
    random = np.random.default_rng(0)
    logs = 0.2 * random.standard_normal((30, 6)) + random.standard_normal((1, 6))
    costs = {str(row): dict(enumerate(np.exp(each).tolist())) for row, each in enumerate(logs)}
    assert estimate_noise(costs) == pytest.approx(0.2, rel=0.1)


def test_gain_below_the_least_that_matters_is_no_winner():
    drawn = Table({PRESENT: 1.0, "other": 1 / (1 + MINIMUM_EFFECT / 2)}, 0, noise=0.0)
    result = drawn.race(budget=100)
    assert not result.is_faster
    answer = "Nothing else that was tried is faster by 2 % or more beyond noise"
    assert verdict_text(result, result.is_faster).startswith(answer)
