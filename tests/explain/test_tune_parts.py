"""Parts of `fastloop tune`: space, candidates, budget, memory forecast, and settings."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fastloop.config.combinations import compose_listed_jobs
from fastloop.config.command_line import read_command_line
from fastloop.config.compose import compose_job, compose_requests, usage_errors
from fastloop.config.composed_values import compose_values
from fastloop.config.tune_space import read_space, split_arguments
from fastloop.core.loading_settings import LoadingSettings
from fastloop.core.machine_counters import process_begun_ns
from fastloop.core.prepared_data import PreparedData
from fastloop.core.result import Attribution
from fastloop.core.spans import now_ns, pause, seconds_between
from fastloop.core.time_limits import Deadline, TimedPasses, deadline_after
from fastloop.core.types import UsageError
from fastloop.explain.batch_passes import BatchTimes
from fastloop.explain.explained_job import ExplainedJob
from fastloop.trial.support import check_support
from fastloop.tune.budget import Spending, TuneBudget, parse_budget, parse_memory_limit
from fastloop.tune.candidate_limits import Bounds, drop_slow_starts, drop_unaffordable
from fastloop.tune.candidates import find_tune_candidates
from fastloop.tune.default_space import (
    add_workers,
    cap_workers,
    drop_settings_without_effect,
    narrow_space,
)
from fastloop.tune.expected_cost import expect_cost
from fastloop.tune.objective import PASS_COSTS, SHORTEST_S, check_objective
from fastloop.tune.outcome import group_reasons
from fastloop.tune.peak_memory import (
    FORECAST_MARGIN,
    MemoryProfile,
    forecast_peak_mib,
    forecast_trial_mib,
)
from fastloop.tune.pilot import FirstPass, Pilot
from fastloop.tune.planning import check_trial_time, first_pass_within
from fastloop.tune.race_time import (
    check_least_time,
    is_short,
    longest_epoch_s,
    name_larger_budget,
    race_of_two_s,
    trial_of_epoch_s,
)
from fastloop.tune.raced_candidates import choose_simplest


def compose(overrides):
    with usage_errors():
        return compose_job(*overrides)


def candidates(space: str, *overrides: str):
    return find_tune_candidates(compose(overrides), overrides, read_space(space, []), compose)


def names(space: str, *overrides: str) -> set[str]:
    return {each.name for each in candidates(space, *overrides).found}


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("300s", TuneBudget(seconds=300)),
        ("5min", TuneBudget(seconds=300)),
        ("0.5h", TuneBudget(seconds=1800)),
        ("60trials", TuneBudget(trials=60)),
        ("10%", TuneBudget(share=0.1)),
    ],
)
def test_budgets(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["abc", "5", "0s", "-3s", "1.5trials", "120%", "", None, "5 days"])
def test_wrong_budgets_are_named(text):
    with pytest.raises(UsageError, match=r"^budget=.*allowed: a time such as 300s"):
        parse_budget(text)


def test_spending_is_a_share_of_what_is_allowed():
    assert Spending(budget=TuneBudget(trials=40), num_trials=10).share_used() == 0.25
    assert (
        Spending(budget=TuneBudget(share=0.1), exhaustive=400, num_trials=10).share_used() == 0.25
    )
    spent = Spending(budget=TuneBudget(seconds=1e6), before_s=5e5)
    assert spent.share_used() == pytest.approx(0.5, abs=0.001)


def test_trials_that_fit_are_counted_by_their_time_or_as_the_budget_says():
    assert Spending(budget=TuneBudget(trials=40), num_trials=10).count_trials(1e9) == 40
    assert Spending(budget=TuneBudget(share=0.1), exhaustive=400).count_trials(1e9) == 40
    assert Spending(budget=TuneBudget(seconds=1e6), before_s=5e5).count_trials(1e4) == 49
    assert Spending(budget=TuneBudget(seconds=10), before_s=20).count_trials(1.0) == 0


def test_process_has_begun_before_this():
    age_s = seconds_between(process_begun_ns(), now_ns())
    assert 0 < age_s < 1e6
    assert (
        Spending(budget=TuneBudget(seconds=1e9), begun_ns=process_begun_ns()).seconds_used >= age_s
    )


def test_time_that_is_kept_for_the_end_counts_as_spent():
    spent = Spending(budget=TuneBudget(seconds=1e6), before_s=4e5, ending_s=1e5)
    assert spent.share_used() == pytest.approx(0.5, abs=0.001)
    assert spent.has_time(4e5)
    assert not spent.has_time(6e5)
    assert Spending(budget=TuneBudget(trials=1), num_trials=5).has_time(1e9)


def test_longest_trial_is_known_by_configuration():
    spent = Spending(budget=TuneBudget(seconds=60))
    for seconds in (1.0, 3.0, 2.0):
        spent.add_trial("a", seconds)
    assert (spent.num_trials, spent.longest_trial_s("a"), spent.longest_trial_s("b")) == (
        3,
        3.0,
        0.0,
    )


def attribution(**values) -> Attribution:
    given = {"seconds": 2.0, "first_batch_s": 0.25, "wait_s": [0.1, 0.2], "place_s": [0.1, 0.0]}
    return Attribution(**(given | {"cpu_s": 0.5} | values))


def test_costs_by_passes():
    seen = attribution()
    assert PASS_COSTS["first_batch"](seen) == 0.25
    assert PASS_COSTS["exposed_wait"](seen) == pytest.approx(0.4)  # waits and placements
    assert PASS_COSTS["exposed_wait"](attribution(idle_s=0.75)) == pytest.approx(0.75)  # of a GPU
    nothing = attribution(wait_s=[0.0], place_s=[0.0])
    assert PASS_COSTS["exposed_wait"](nothing) == SHORTEST_S  # costs have logarithms


@pytest.mark.parametrize("name", ["nope", "", None])
def test_wrong_objectives_are_named(name):
    with pytest.raises(UsageError, match=f"objective={name}: allowed: epoch"):
        check_objective(name)


@pytest.mark.parametrize("text", ["abc", "0", "-5", "inf", "nan"])
def test_wrong_memory_limits_are_named(text):
    with pytest.raises(UsageError, match=f"memory_limit_mib={text}: allowed"):
        parse_memory_limit(text)
    assert parse_memory_limit("1500") == 1500
    assert parse_memory_limit(None) is None


def test_settings_of_tune_are_told_from_those_of_jobs():
    given = ["budget=1h", "loader=raw", "space=num_workers=0,1", "-cd", "x"]
    settings, left = split_arguments(given)
    assert settings["budget"] == "1h"
    assert settings["space"] == "num_workers=0,1"
    assert settings["objective"] == "epoch"
    assert left == ["loader=raw", "-cd", "x"]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ("num_wrkers=1,2", "num_wrkers=1,2: no such setting"),
        ("dataset=digits,integers", "it changes what is computed"),
        ("epochs=1,2", "it changes what is computed, or how it is measured"),
        ("num_workers", "num_workers: allowed: name=a,b,c"),
        ("loader.nope=1", "no such setting"),
        ("~loader", "~loader: allowed: name=a,b,c"),
        ("loader='raw", "No closing quotation"),
    ],
)
def test_wrong_spaces_are_named(space, message):
    with pytest.raises(UsageError) as error, usage_errors():
        read_space(space, [])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_space_has_the_syntax_of_hydra():
    space = read_space("num_workers=range(0,3) torch_threads=choice(1,2) loader=glob(r*)", [])
    assert space["num_workers"] == ("num_workers=0", "num_workers=1", "num_workers=2")
    assert space["torch_threads"] == ("torch_threads=1", "torch_threads=2")
    assert space["loader"] == ("loader=raw",)


def test_default_space_crosses_loaders_and_settings_but_not_the_batch_size():
    space = read_space(None, [])
    assert "loader=fastloop" in space["loader"]
    assert "torch_threads=1" in space["torch_threads"]
    assert "batch_size" not in space


def test_settings_without_effect_are_left_out_and_said():
    job = compose_job("dataset=digits", "device=cpu")
    kept, notes = drop_settings_without_effect(read_space(None, []), job)
    assert "placement" not in kept
    assert "decoder" not in kept
    assert any(note.startswith("placement: no effect on the CPU") for note in notes)


def test_workers_beyond_the_cores_are_left_out_and_said():
    few = {"num_workers": ["num_workers=0", "num_workers=2"], "torch_threads": ["torch_threads=1"]}
    assert cap_workers(few) == (few, [])
    many = [*few["num_workers"], "num_workers=999998", "num_workers=999999"]
    kept, (note,) = cap_workers({**few, "num_workers": many})
    assert kept == few
    assert re.fullmatch(
        r"num_workers=999998 num_workers=999999: more than two workers for each of \d+ cores?", note
    )


def test_combinations_are_crossed_and_what_can_not_be_combined_is_said():
    found = candidates("num_workers=0,1 prefetch_factor=null,4", "dataset=digits", "loader=raw")
    expected = {"num_workers=1", "num_workers=1 prefetch_factor=4"}
    assert {each.name for each in found.found} == expected
    (reason,) = found.left_out
    assert "needs workers" in reason


def test_settings_of_the_user_that_lose_their_meaning_are_reset():
    mine = ("dataset=digits", "loader=raw", "num_workers=2", "prefetch_factor=4")
    assert names("num_workers=0,2", *mine) == {"num_workers=0 prefetch_factor=null"}
    (fast,) = candidates("loader=raw,fastloop", *mine).found
    assert fast.job.loading.num_workers == 0
    assert set(fast.change.overrides) == {
        "loader=fastloop",
        "num_workers=0",
        "prefetch_factor=null",
    }


def test_settings_of_an_option_are_crossed_with_that_option_alone():
    found = names("loader=raw,fastloop loader.num_threads=0,1", "dataset=digits", "loader=raw")
    assert found == {
        "loader=fastloop loader.num_threads=0",
        "loader=fastloop loader.num_threads=1",
    }


def test_race_begins_with_the_simplest_change_to_each_loader_and_decoder():
    changes = [
        (),
        ("decoder=opencv", "num_workers=2", "persistent_workers=True"),
        ("loader=spdl", "decoder=opencv"),
        ("loader=fastloop", "num_workers=0", "torch_threads=1"),
        ("loader=fastloop", "num_workers=0"),
        ("loader=spdl",),
        ("num_workers=2",),
        ("decoder=turbojpeg", "device_prefetch=2"),
        ("decoder=turbojpeg", "prefetch_factor=8"),
        ("loader=np_memmap",),
        ("loader=numpy_loop",),
    ]
    predicted = [1.0, 0.2, 0.6, 0.9, 0.9, 0.7, 0.1, 0.4, 0.3, 0.1, 0.9]
    raw, stored = (compose_job("dataset=digits", f"loader={name}") for name in ("raw", "np_memmap"))
    jobs = [*(raw for _ in changes[:-2]), stored, stored]
    # FastLoader and numpy_loop usually win; the others follow by their predictions. Another loader
    # with a store of its own is left out.
    assert choose_simplest(jobs, changes, predicted) == [4, 10, 8, 2, 5]


def test_short_budgets_try_what_helps_most_often():
    present = compose_job("dataset=digits", "loader=raw", "device=cpu")
    space, _ = drop_settings_without_effect(read_space(None, []), present)
    narrow, (note,) = narrow_space(space, "raw")
    loaders = ("fastloop", "numpy_loop", "python_loop", "raw")
    assert {*narrow["loader"]} == {f"loader={name}" for name in loaders}
    assert len(narrow["persistent_workers"]) == 2
    assert {*narrow} <= {*space}
    assert "budget is below" in note
    mine = ("dataset=digits", "loader=raw")
    found = find_tune_candidates(compose(mine), mine, narrow, compose).found
    assert 4 < len(found) < 20
    first = min(found, key=lambda each: expect_cost(each.job, each.change.overrides))
    assert first.change.overrides == ("loader=fastloop", "torch_threads=1")


@pytest.mark.parametrize(
    ("cpu_s", "delay_s", "waits"),
    [(0.0002, 0.0, True), (0.0015, 0.0, False), (0.004, 0.0, False), (0.0002, 0.0036, False)],
)
def test_samples_that_wait_get_many_workers(cpu_s, delay_s, waits):
    times = BatchTimes(load_s=[0.004] * 5, load_cpu_s=[cpu_s] * 5, load_delay_s=[delay_s] * 5)
    first = FirstPass(whole_epochs=cast("Any", None), own_threads=times, pass_s=1.0)
    assert first.waits is waits
    present = compose_job("dataset=digits", "loader=raw", "device=cpu")
    space, _ = drop_settings_without_effect(read_space(None, []), present)
    wide = add_workers(space)
    numbers = [int(text.partition("=")[2]) for text in wide["num_workers"]]
    assert numbers[-3:] == [8, 16, 32]
    assert len({*numbers}) == len(numbers)
    assert {**wide, "num_workers": space["num_workers"]} == space
    costs = [
        expect_cost(compose_job("dataset=digits", "loader=raw", text), (text,), waits=waits)
        for text in ("num_workers=0", "num_workers=2", "num_workers=32")
    ]
    assert costs == ([1.0, 0.5, 1 / 32] if waits else [1.0] * 3)


def test_many_workers_that_start_in_each_short_epoch_are_not_tried_first():
    cost_of = lambda *texts: expect_cost(  # noqa: E731
        compose_job("dataset=digits", "loader=raw", *texts), texts, waits=True, epoch_s=0.5
    )
    kept = cost_of("num_workers=32", "persistent_workers=true")
    assert kept == 1 / 32
    assert kept < cost_of("num_workers=2") < 1 < cost_of("num_workers=32")


def test_end_of_a_busy_command_is_reserved_for(monkeypatch):
    spent = Spending(budget=TuneBudget(seconds=60))
    for slowdown, expected_s in ((1.0, 2.0), (3.0, 6.0), (50.0, 9.0)):
        monkeypatch.setattr("fastloop.tune.budget.slowdown_by_load", lambda each=slowdown: each)
        assert spent.find_ending_s() == expected_s
        assert Spending(budget=TuneBudget(trials=5)).find_ending_s() == 2.0


def test_many_workers_are_not_tried_with_a_slow_start():
    space = "num_workers=2,32 multiprocessing_context=null,spawn"
    found = candidates(space, "dataset=digits", "loader=raw")
    kept = drop_slow_starts(found)
    assert {each.name for each in kept.found} == {each.name for each in found.found} - {
        "num_workers=32 multiprocessing_context=spawn"
    }
    assert kept.left_out == {"num_workers=32 with multiprocessing_context=spawn: slow to start": 1}


def test_many_forked_workers_are_tried_in_place_of_spawned_ones():
    space = "num_workers=2,32 multiprocessing_context=null,spawn"
    present = ("num_workers=1", "multiprocessing_context=spawn")
    found = candidates(space, "dataset=digits", "loader=raw", *present)
    forked = "num_workers=32 multiprocessing_context=null"
    assert forked in {each.name for each in found.found}
    assert drop_slow_starts(found) == found


def test_budgets_that_hold_no_race_name_the_least_one():
    least = r"^budget=26s is too short: .* takes at least 27 s; allowed: from 27s$"
    with pytest.raises(UsageError, match=least):
        check_least_time(Spending(budget=TuneBudget(seconds=26), before_s=10))
    check_least_time(Spending(budget=TuneBudget(seconds=27), before_s=10))
    check_least_time(Spending(budget=TuneBudget(trials=2), before_s=1e9))
    assert is_short(TuneBudget(seconds=60))
    assert not is_short(TuneBudget(seconds=300))
    assert not is_short(TuneBudget(trials=5))


@pytest.mark.parametrize("left_s", [20.0, 73.0, 180.0])
def test_epochs_are_cut_until_a_race_of_two_has_time(left_s):
    epoch_s = longest_epoch_s(left_s)
    needed_s = race_of_two_s(trial_of_epoch_s(epoch_s))
    assert needed_s == pytest.approx(0.7 * left_s)


def test_epochs_are_shorter_if_processes_start_slowly():
    quick, slow = (
        FirstPass(
            whole_epochs=cast("Any", None),
            own_threads=BatchTimes(load_s=[0.5] * 4, step_s=[0.5] * 4),
            pass_s=4.0 + start_s,
        )
        for start_s in (0.1, 5.0)
    )
    assert (quick.start_s, slow.start_s) == (0.5, 5.0)
    epoch_s = longest_epoch_s(180.0, slow.start_s)
    assert epoch_s < longest_epoch_s(180.0, quick.start_s) == longest_epoch_s(180.0)
    needed_s = race_of_two_s(trial_of_epoch_s(epoch_s, start_s=slow.start_s))
    assert needed_s == pytest.approx(0.7 * 180)


def test_larger_budget_that_is_named_holds_what_is_missing():
    name = name_larger_budget(TuneBudget(seconds=180), 180.4, 7.0)
    assert name == "budget=330s"
    assert parse_budget(name.partition("=")[2]).seconds >= 180.4 + race_of_two_s(7.0)
    assert name_larger_budget(TuneBudget(trials=5), 9.0, 7.0) == "a larger budget"


def test_pilot_begins_no_pass_that_would_end_too_late():
    begun: list[str] = []
    passes = TimedPasses(deadline=deadline_after(60.0), longest_s=50.0)
    assert passes.run_all([lambda: begun.append("first")]) == [None]

    def make_slow():
        begun.append("second")
        passes.longest_s = 70.0

    assert passes.run_all([make_slow, lambda: begun.append("third")]) is None
    assert begun == ["first", "second"]
    assert not passes.have_time()


def test_the_longest_pass_tells_whether_another_one_has_time():
    passes = TimedPasses(deadline=deadline_after(60.0), longest_s=0.0)
    assert passes.run(lambda: pause(0.02) or "result") == "result"
    assert 0.02 <= passes.longest_s < 60
    assert passes.have_time()


def test_a_deadline_has_room_for_work_that_ends_in_time():
    assert deadline_after(60.0).has_room(50.0)
    assert not deadline_after(60.0).has_room(70.0)
    assert not deadline_after(60.0, begun_ns=now_ns() - 50 * 10**9).has_room(20.0)
    assert deadline_after(-1.0).is_over
    assert deadline_after(None).has_room(1e12)
    assert not Deadline().is_over


PROFILE = MemoryProfile(
    process_mib=500,
    added_mib={"fork": {1: 70, 4: 190}, "spawn": {2: 600}},
    batch_mib=10,
    batches=20,
    rows_mib=1000,
)


@pytest.mark.parametrize(
    ("overrides", "mib"),
    [
        ((), 500),
        (("num_workers=2", "multiprocessing_context=fork"), 500 + 70 + (190 - 70) / 3),
        (("num_workers=8", "multiprocessing_context=fork"), 500 + 2 * 190),
        (
            ("num_workers=2", "multiprocessing_context=spawn", "prefetch_factor=8"),
            500 + 600 + (2 * 8 - 2 * 2) * 10,
        ),
        (
            ("num_workers=4", "multiprocessing_context=spawn", "prefetch_factor=8"),
            500 + 1200 + (20 - 4 * 2) * 10,
        ),
        (("device_prefetch=3",), 500 + 4 * 10),
        (("loader=fastloop",), 1500),
        (("loader=preload",), 2500),  # the mapped rows and their copy
        (("loader=fastloop", "loader.in_memory=true"), 2500),
    ],
)
def test_forecast_adds_up_what_was_measured(overrides, mib):
    job = compose_job("dataset=digits", "loader=raw", *overrides)
    assert forecast_peak_mib(job, PROFILE) == pytest.approx(mib)


def test_rows_that_the_present_loader_maps_count_once():
    profile = replace(PROFILE, included_rows_mib=1000)
    mapped, copied = (
        forecast_peak_mib(compose_job("dataset=digits", f"loader={name}"), profile)
        for name in ("np_memmap", "preload")
    )
    assert (mapped, copied) == (500, 1500)


@pytest.mark.parametrize(
    ("overrides", "measuring_mib"),
    [
        (("benchmark=traversal",), 256),  # the most that the limit gathers from
        (("benchmark=training",), 32 * 10),  # batches that the limit repeats
    ],
)
def test_trials_need_more_than_their_configuration(overrides, measuring_mib):
    job = compose_job("dataset=digits", "loader=raw", *overrides)
    expected = (1 + FORECAST_MARGIN) * (500 + measuring_mib)
    assert forecast_trial_mib(job, PROFILE) == pytest.approx(expected)


def pilot_of(*, random: bool) -> Pilot:
    """The pilot of digits by loader=raw, of which nothing but the data is known."""
    prepared = PreparedData(
        dataset=cast("Any", None),
        label="digits",
        fingerprint="",
        content="",
        reference=Path("reference"),
        folder=Path("reference"),
        num_samples=10,
        sample=cast("Any", ()),
        sample_nbytes=1,
        random=random,
    )
    return Pilot(
        present=compose_job("dataset=digits", "loader=raw"),
        prepared=prepared,
        measured=None,
        memory=None,
        decode_s=0.1,
        epoch_s=0.1,
        cut=None,
    )


def test_budget_without_time_for_one_trial_is_refused_and_a_larger_one_is_named():
    slow = replace(pilot_of(random=False), epoch_s=4.0, start_s=10.0)  # a trial takes 26 s
    check_trial_time(slow, Spending(budget=TuneBudget(seconds=60), before_s=30))
    check_trial_time(slow, Spending(budget=TuneBudget(trials=5), before_s=1e9))
    with pytest.raises(UsageError, match=r"^budget=60s is too short: .* about 26 s") as caught:
        check_trial_time(slow, Spending(budget=TuneBudget(seconds=60), before_s=40))
    named = re.search(r"for example budget=(\S+)$", str(caught.value))
    assert named
    assert parse_budget(named[1]).seconds >= 40 + race_of_two_s(26)


def test_first_pass_is_stopped_at_its_share_of_the_budget():
    deadlines = []

    def time_pass(deadline):
        deadlines.append(deadline)
        raise UsageError("it takes longer")

    spending = Spending(budget=TuneBudget(seconds=60), before_s=10)
    with pytest.raises(UsageError, match=r"^budget=60s is too short: 10 s of it are spent, and it"):
        first_pass_within(spending, time_pass)
    assert 0 < deadlines[0].remaining_s <= 20
    with pytest.raises(UsageError, match=r"^it takes longer$"):
        first_pass_within(Spending(budget=TuneBudget(trials=5)), time_pass)
    assert deadlines[1].remaining_s == math.inf


def test_stores_of_random_samples_are_left_out_before_the_race():
    bounds = Bounds(memory_mib=1e9, budget_s=None)
    space = "loader=raw,fastloop,np_memmap,preload num_workers=0,2"
    found = candidates(space, "dataset=digits", "loader=raw")
    assert {each.job.loader.store is None for each in found.found} == {True, False}
    kept = drop_unaffordable(found, pilot_of(random=True), bounds)
    assert {each.name for each in kept.found} == {
        each.name for each in found.found if not each.job.loader.store
    }
    reason = "the samples are random, and a store repeats one draw of them"
    num_dropped = len(found.found) - len(kept.found)
    assert kept.left_out == {**found.left_out, reason: num_dropped}
    assert drop_unaffordable(found, pilot_of(random=False), bounds) == found


@pytest.mark.parametrize(("budget_s", "slowdown", "is_kept"), [(60, 1, 1), (60, 9, 0), (600, 9, 1)])
def test_many_workers_that_would_use_up_a_short_budget_to_start_are_left_out(
    budget_s, slowdown, is_kept
):
    found = candidates("num_workers=2,32", "dataset=digits", "loader=raw")
    bounds = Bounds(memory_mib=1e9, budget_s=budget_s, slowdown=slowdown)
    kept = drop_unaffordable(found, pilot_of(random=False), bounds)
    assert [each.name for each in kept.found] == ["num_workers=2", "num_workers=32"][: 1 + is_kept]
    assert [*kept.left_out] == ["num_workers=32: their start takes about 9 s of the budget"][
        is_kept:
    ]


def test_reasons_that_differ_by_their_values_share_a_line():
    counts = {
        "num_workers=1: loader=fastloop has no such setting": 3,
        "num_workers=2: loader=fastloop has no such setting": 2,
        "num_workers=1: loader=grain has no such setting": 2,
        "num_workers=2: loader=grain has no such setting": 2,
        "persistent_workers=true needs workers": 4,
        "transform=crop: loader=hdf5 reads a store, so no loader=raw": 3,
        "transform=crop: loader=zarr reads a store, so no loader=raw": 2,
        "anything else": 1,
    }
    assert group_reasons(counts) == [
        ("num_workers=1,2: loader=fastloop,grain has no such setting", 9),
        ("transform=crop: loader=hdf5,zarr reads a store, so no loader=raw", 5),
        ("persistent_workers=true needs workers", 4),
        ("anything else", 1),
    ]


def test_jobs_that_are_composed_together_are_those_composed_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fastloop"])
    jobs = [
        ["dataset=digits", "loader=raw", "num_workers=2", "multiprocessing_context=null"],
        ["dataset=digits", "loader=raw", "torch_threads=1", "device_prefetch=2"],
        ["dataset=digits", "loader=fastloop", "loader.num_threads=1", "seed=3"],
        ["dataset=texts", "order=buckets", "collate=pad", "batch_size=7"],  # order.batch_size is it
    ]
    line = read_command_line([])
    together = compose_listed_jobs(line, jobs, tmp_path)
    alone = [compose_listed_jobs(line, [job], tmp_path)[0] for job in jobs]
    assert [each.values for each in together] == [each.values for each in alone]
    assert [each.values for each in together] == [compose_values(*job) for job in jobs]
    assert [each.choices for each in together] == [each.choices for each in alone]
    assert [list(each.overrides) for each in together] == jobs
    assert [each.folder for each in together] == [tmp_path / str(n) for n in range(len(jobs))]
    with pytest.raises(UsageError, match="num_workers"), usage_errors():
        compose_requests([["dataset=digits", "num_workers=-1"]], tmp_path)


def test_job_of_a_pilot_can_run_without_workers():
    settings = "num_workers=1", "prefetch_factor=4", "persistent_workers=true"
    job = compose_job("dataset=digits", "multiprocessing_context=spawn", *settings)
    explained = ExplainedJob(
        job=job,
        prepared=cast("Any", None),
        launcher=cast("Any", None),
        begin_step=print,
        whole_batches=1,
    )
    alone = explained.without_workers(1)
    check_support(alone.job)
    assert alone.job.loading == LoadingSettings(batch_size=job.loading.batch_size)
    assert alone.with_workers(2, "spawn").job.start_method() == "spawn"
    assert explained.with_workers(2).job.start_method() == "spawn"
