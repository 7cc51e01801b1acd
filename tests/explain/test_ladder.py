"""Ladder and verdict of known times, and the changes of command lines."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from options import compose_job

from fastloop.core.explanation import Explanation, InstrumentedEpoch, WhatIf
from fastloop.core.limit import LimitOrigin
from fastloop.core.number_text import show_percent
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.core.types import UsageError
from fastloop.explain.change import Change
from fastloop.explain.epoch_parts import work_of
from fastloop.explain.explanation_text import format_explanation, ladder_table, to_json
from fastloop.explain.ladder import build_ladder
from fastloop.explain.proposed_changes import propose_changes, read_changes
from fastloop.explain.rung_passes import EpochTimes
from fastloop.explain.verdict import add_threads, is_imprecise, is_undecided, judge
from fastloop.explain.what_ifs import ChangedJob, choose, find_best
from fastloop.trial.support import check_support

BATCHES = 100
NOISE = (0.0, 0.001, -0.001, 0.002, -0.002)
"""Seconds by which an epoch is longer, in five rounds."""


def times(seconds: float, start_up_s: float = 0.0, batches: int = BATCHES) -> EpochTimes:
    return EpochTimes(
        seconds=seconds,
        batches=batches,
        first_wait_s=start_up_s + 0.001,
        later_wait_s=0.001,
        end_s=0.0,
    )


def rounds(start_up_s: float = 0.0, **seconds: float) -> list[dict[Part, EpochTimes]]:
    """Five rounds of these rungs, lowest first; what is started with ready batches stays."""
    rungs = [Part[name.upper()] for name in seconds]
    starts = rungs.index(Part.HAND_OFF) if Part.HAND_OFF in rungs else len(rungs) - 1
    return [
        {
            rung: times(value + noise, start_up_s if place >= starts else 0.0)
            for place, (rung, value) in enumerate(zip(rungs, seconds.values(), strict=True))
        }
        for noise in NOISE
    ]


def word(ladder) -> Part:
    return judge(ladder, "training", 0.1).word


def test_parts_are_differences_and_add_up_to_the_epoch():
    ladder = build_ladder(rounds(0.2, step=1, copy=1.1, hand_off=1.5, decode=3), BATCHES, None)
    exposed = {row.rung: row.exposed_ms.value for row in ladder.rows}
    assert list(exposed) == ["step", "copy", "start-up", "hand-off", "decode"]
    assert exposed == pytest.approx(dict(zip(exposed, [10, 1, 2, 2, 15], strict=True)))
    assert ladder.explained == pytest.approx(1)
    assert ladder.wait_share.value == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"step": 1, "copy": 1, "hand_off": 1.01, "collate": 1.02, "decode": 1.05}, "step"),
        ({"step": 1, "copy": 1, "hand_off": 1.01, "collate": 1.02, "decode": 1.6}, "decode"),
        ({"step": 1, "copy": 1, "hand_off": 1.01, "collate": 1.6, "decode": 1.7}, "collate"),
        ({"step": 1, "copy": 1.5, "read": 1.6}, "copy"),
        ({"step": 1, "copy": 1, "unattributed": 2}, "unattributed"),
    ],
)
def test_the_greatest_part_of_the_wait_is_the_word(seconds, expected):
    assert word(build_ladder(rounds(**seconds), BATCHES, {})) == expected


def test_a_slow_start_is_start_up():
    seconds = {"step": 1, "copy": 1, "hand_off": 1.8, "decode": 1.9}
    assert word(build_ladder(rounds(0.7, **seconds), BATCHES, None)) == "start-up"


def test_what_each_worker_opens_is_start_up_and_its_first_load_is_not():
    """An epoch starts up 0.5 s later with the samples than with ready batches; 0.1 s of that is the
    first batch, which takes as long without workers."""
    by_round = rounds(step=1, copy=1, hand_off=1.05, decode=1.6)
    for times_of in by_round:
        decode = times_of[Part.DECODE]
        times_of[Part.DECODE] = times(decode.seconds, 0.5)
    alone = {Part.DECODE: times(11, 0.1)}
    ladder = build_ladder(by_round, BATCHES, {}, alone)
    exposed = {row.rung: row.exposed_ms.value for row in ladder.rows}
    assert exposed[Part.START_UP] == pytest.approx(4, abs=0.1)
    assert exposed[Part.DECODE] == pytest.approx(1.5, abs=0.1)
    assert word(ladder) == "start-up"


def test_workers_that_persist_start_nothing_in_an_epoch():
    """What the first batch waits longer for samples than for ready ones is the samples'."""
    by_round = rounds(step=1, copy=1, hand_off=1.05, decode=1.6)
    for times_of in by_round:
        times_of[Part.DECODE] = times(times_of[Part.DECODE].seconds, 0.5)
    ladder = build_ladder(by_round, BATCHES, {}, None)
    exposed = {row.rung: row.exposed_ms.value for row in ladder.rows}
    assert exposed[Part.START_UP] == pytest.approx(0, abs=0.1)
    assert exposed[Part.DECODE] == pytest.approx(5.5, abs=0.1)
    assert word(ladder) == "decode"


def test_the_first_hand_off_of_an_epoch_is_hand_off_and_not_start_up():
    """Of 0.5 s until the first ready batch, a worker writes it to shared memory for 0.3 s."""
    by_round = rounds(0.5, step=1, copy=1, hand_off=2, decode=2)
    for times_of in by_round:
        times_of[Part.HAND_OFF] = replace(times_of[Part.HAND_OFF], share_s=0.301)
    exposed = {row.rung: row.exposed_ms.value for row in build_ladder(by_round, BATCHES, {}).rows}
    assert exposed[Part.START_UP] == pytest.approx(2, abs=0.1)
    assert exposed[Part.HAND_OFF] == pytest.approx(8, abs=0.1)


def test_start_up_is_at_most_what_its_rung_adds_to_an_epoch():
    """The first batch waits 0.4 s longer for samples, of which later batches make up for 0.35 s."""
    by_round = rounds(step=1, copy=1, hand_off=1.5, decode=1.55)
    for times_of in by_round:
        times_of[Part.DECODE] = times(times_of[Part.DECODE].seconds, 0.4)
    ladder = build_ladder(by_round, BATCHES, {}, {Part.DECODE: times(1.6)})
    exposed = {row.rung: row.exposed_ms.value for row in ladder.rows}
    assert exposed[Part.START_UP] == pytest.approx(0.5, abs=0.1)
    assert exposed[Part.DECODE] == pytest.approx(0, abs=0.1)
    assert ladder.residue < 0.01


@pytest.mark.parametrize(("spread", "is_wide"), [(0.001, False), (0.2, True)])
def test_more_rounds_are_run_where_the_size_of_a_part_is_open(spread, is_wide):
    noise = np.exp(spread * np.random.default_rng(0).standard_normal((3, 3)))
    seconds = {Part.STEP: 1.0, Part.COPY: 1.0, Part.READ: 2.0}
    timed = [
        {
            rung: times(each * factor)
            for (rung, each), factor in zip(seconds.items(), row, strict=True)
        }
        for row in noise.tolist()
    ]
    assert is_imprecise(build_ladder(timed, BATCHES, {})) == is_wide


def test_a_start_counts_once_in_an_epoch_that_was_cut():
    cut = [
        {
            Part.STEP: times(0.1, batches=10),
            Part.COPY: times(0.1, batches=10),
            Part.READ: times(0.7, 0.5, batches=10),
        }
    ] * 3
    ladder = build_ladder(cut, BATCHES, None)
    assert ladder.epoch_s.value == pytest.approx(0.5 + 2.0)
    exposed = {row.rung: row.exposed_ms.value for row in ladder.rows}
    assert exposed[Part.START_UP] == pytest.approx(5)
    assert exposed[Part.READ] == pytest.approx(10)


def test_parts_that_miss_the_whole_name_no_cause():
    """With its collate left out the job is slower than with it: one of the two is not what it is
    taken for."""
    seconds = {"step": 1, "copy": 1, "hand_off": 1.5, "collate": 1.2, "decode": 2}
    verdict = judge(build_ladder(rounds(**seconds), BATCHES, {}), "training", 0.1)
    assert verdict.word == "unattributed"
    assert re.search(r"below zero, by 1\d % of an epoch", verdict.sentences[1])


def test_two_parts_of_one_size_are_both_named():
    seconds = {"step": 1, "copy": 1, "hand_off": 1.0, "collate": 1.5, "decode": 2}
    by_round = rounds(**seconds)
    for number, times_of in enumerate(by_round):  # the collate takes more in some, less in others
        times_of[Part.COLLATE] = times(1.5 + 0.02 * (number - 2))
    ladder = build_ladder(by_round, BATCHES, {})
    verdict = judge(ladder, "training", 0.1, "PNG decoding")
    assert verdict.word == "unattributed"
    sure = {row.rung: row.sure_greatest for row in ladder.rows}
    assert sure[Part.COLLATE] + sure[Part.DECODE] == pytest.approx(1)
    assert re.search(
        r"The greatest part of the wait is (PNG decoding|collating samples) \(\d+ % sure\) or",
        verdict.sentences[1],
    )


def test_rounds_that_differ_too_much_tell_a_bound():
    noisy = [
        {Part.STEP: times(step), Part.COPY: times(step), Part.READ: times(1.0)}
        for step in (0.2, 1.4, 0.9)
    ]
    ladder = build_ladder(noisy, BATCHES, {})
    verdict = judge(ladder, "training", 0.1)
    assert verdict.word == "unattributed"
    most = show_percent(ladder.wait_share.high)
    answer, guess = verdict.sentences[:2]
    assert len(verdict.sentences) <= 3
    assert answer.startswith("No answer yet: passes vary by ")
    assert guess.startswith("Best guess: this training waits ")
    assert f"up to {most} is possible" in guess
    assert "-" not in guess


@pytest.mark.parametrize(
    ("read_s", "expected", "sentence"),
    [
        (1.03, "step", "limited by its step: a perfect loader would save at most "),
        (3.0, "read", "waits for data 67 % ["),
        (1.15, "unattributed", "No answer yet: "),
    ],
)
def test_two_rounds_are_enough_for_a_verdict(read_s, expected, sentence):
    two = [
        {Part.STEP: times(1 + noise), Part.COPY: times(1 + 2 * noise), Part.READ: times(read_s)}
        for noise in (0.0, 0.05 if read_s == 1.15 else 0.005)
    ]
    verdict = judge(build_ladder(two, BATCHES, {}), "training", 0.1)
    assert verdict.word == expected
    assert sentence in verdict.sentences[0]


def test_one_round_tells_what_is_assumed():
    one = [{Part.STEP: times(1), Part.COPY: times(1), Part.READ: times(1.1)}]
    verdict = judge(build_ladder(one, BATCHES, {}), "training", 0.1)
    assert verdict.word == "unattributed"
    assert "one round shows no noise, and 10 % is assumed" in " ".join(verdict.sentences)


def test_steps_that_are_slower_between_loads_are_no_cause_in_the_loader():
    """A perfect loader would save half of the epoch, but hardly any time is spent in next()."""
    ladder = build_ladder(rounds(step=1, copy=1, hand_off=1, decode=2), BATCHES, None)
    verdict = judge(ladder, "training", 0.1)
    assert ladder.slower_steps.value == pytest.approx(0.45, abs=0.02)
    assert verdict.word == "unattributed"
    assert "next() takes less time than a perfect loader would save" in verdict.sentences[1]
    assert "Steps between loads are slower than steps back to back" in verdict.sentences[1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_loader_is_said_to_gain_less_than_the_time_in_next(device):
    """The noise of two long steps says that the job takes no longer than its steps do."""
    noisy = [
        {rung: times(2 + noise) for rung in (Part.STEP, Part.COPY, Part.READ)} for noise in NOISE
    ]
    ladder = build_ladder(noisy, BATCHES, None, device=device)
    assert all(each[Part.READ].next_share == pytest.approx(0.05, rel=0.01) for each in noisy)
    # A device may compute while the loop is in next().
    assert (ladder.wait_share.high > 0.049) == (device == "cpu")


@pytest.mark.parametrize(
    ("place_s", "expected"), [(None, "copy"), (0.3, "copy"), (0.002, "hand-off")]
)
def test_copies_take_at_most_the_time_that_a_clock_around_them_shows(place_s, expected):
    """The steps of the copying pass are slower by a fifth, as those of several threads may be."""
    timed = [
        {**each, Part.COPY: replace(each[Part.COPY], place_s=place_s)}
        for each in rounds(step=1, copy=1.2, hand_off=1.18, decode=1.2)
    ]
    ladder = build_ladder(timed, BATCHES, {})
    assert word(ladder) == expected
    copy = next(row for row in ladder.rows if row.rung is Part.COPY)
    assert copy.share.value == pytest.approx(0.2 / 1.2 if expected == "copy" else 0, abs=0.005)
    assert ladder.wait_share.value == pytest.approx(1 - 1 / 1.2)


def test_no_share_is_negative_and_a_table_of_nothing_is_left_out():
    assert [show_percent(share) for share in (-0.0004, 0.0, -0.02)] == ["0.0 %", "0.0 %", "-2.0 %"]
    assert all("-" not in cell for row in ladder_table(build_noise()) for cell in row[2:])
    assert all(row.share.low <= 0 for row in build_noise().rows if row.rung is not Part.STEP)
    text = format_explanation(explanation_of(build_noise(), ()))
    assert "no part of loading is known" in text
    assert "exposed ms a batch" not in text


def build_noise():
    noisy = [
        {Part.STEP: times(step), Part.COPY: times(copy), Part.READ: times(read)}
        for step, copy, read in ((1.0, 0.9, 1.2), (1.2, 1.3, 1.0), (0.9, 1.0, 0.8))
    ]
    return build_ladder(noisy, BATCHES, {})


def test_what_decodes_is_named():
    ladder = build_ladder(rounds(step=1, copy=1, collate=1.2, decode=2), BATCHES, {})
    verdict = judge(ladder, "training", 0.1, "JPEG decoding by Pillow")
    parts = (
        "The wait is JPEG decoding by Pillow (80 %), collating samples (20 %); the first takes 8 "
    )
    assert verdict.sentences[1].startswith(parts)


def test_work_beyond_what_is_exposed_is_hidden():
    seconds = {"step": 1, "copy": 1, "hand_off": 1.1, "decode": 1.4}
    serial = dict.fromkeys([Part.STEP, Part.COPY], times(1))
    serial |= {Part.HAND_OFF: times(1), Part.DECODE: times(3)}
    ladder = build_ladder(rounds(**seconds), BATCHES, work_of(serial, BATCHES))
    hidden = {row.rung: row.hidden_ms for row in ladder.rows}
    assert hidden[Part.DECODE] == pytest.approx(20 - 3)
    assert hidden[Part.HAND_OFF] == 0


def test_a_change_replaces_overrides_of_its_names():
    overrides = ("loader=raw", "+loader.a=1", "store@loader.store=npy", "num_workers=2", "epochs=1")
    change = Change(overrides=("loader=np_memmap", "num_workers=0"))
    assert change.apply(overrides) == ("epochs=1", "loader=np_memmap", "num_workers=0")


def test_changes_that_can_not_apply_are_not_proposed():
    plain = {each.name for each in propose_changes(compose_job("num_workers=1"))}
    assert not {"transform.where=device", "cache=warm", "cache=cold", "device_prefetch=2"} & plain
    assert not any(name.startswith(("decoder=", "pin_memory")) for name in plain)
    moved = compose_job("transform=normalize", "transform.where=worker", "cache=cold")
    names = {each.name for each in propose_changes(moved, decoders=["turbojpeg"])}
    assert {"transform.where=device", "cache=warm", "decoder=turbojpeg"} <= names
    cold = {each.name for each in propose_changes(compose_job(), in_memory=0.5)}
    assert "cache=cold" in cold
    assert "cache=cold" not in {each.name for each in propose_changes(compose_job(), in_memory=1.0)}


def test_a_transform_of_the_users_moves_to_the_device_by_an_override_that_adds():
    change = Change(overrides=("++transform.where=device",))
    assert change.name == "transform.where=device"
    given = ("transform._target_=mine.f", "+transform.where=worker")
    assert change.apply(given) == ("transform._target_=mine.f", "++transform.where=device")


def test_changes_that_the_user_names():
    (one, two) = read_changes(["batch_size=128", "num_workers=2 prefetch_factor=4"])
    assert one.apply(["batch_size=8", "epochs=1"]) == ("epochs=1", "batch_size=128")
    assert two.name == "num_workers=2 prefetch_factor=4"
    for wrong in ("", "batch_size", "'batch_size=1"):
        with pytest.raises(UsageError, match="what_if="):
            read_changes([wrong])


@pytest.mark.parametrize(
    ("read", "spread", "is_open"),
    [(2.0, 0.001, False), (1.11, 0.05, True), (1.0, 0.001, False), (2.0, 0.9, True)],
)
def test_more_rounds_are_run_where_the_first_leave_the_verdict_open(read, spread, is_open):
    noise = np.exp(spread * np.random.default_rng(0).standard_normal((3, 3)))
    timed = [
        {
            Part.STEP: times(1 * factors[0]),
            Part.COPY: times(1 * factors[1]),
            Part.READ: times(read * factors[2]),
        }
        for factors in noise
    ]
    assert is_undecided(build_ladder(timed, BATCHES, {})) == is_open


def test_changes_are_other_than_the_job_is():
    names = {each.name for each in propose_changes(compose_job("num_workers=1", "torch_threads=1"))}
    assert {"num_workers=0", "num_workers=2", "prefetch_factor=8", "loader=np_memmap"} <= names
    assert not {"num_workers=1", "torch_threads=1"} & names


def test_a_change_to_no_workers_resets_what_needs_them():
    job = compose_job("num_workers=2", "prefetch_factor=4", "persistent_workers=true")
    overrides = {each.name: each.overrides for each in propose_changes(job)}
    resets = ("num_workers=0", "prefetch_factor=null", "persistent_workers=false")
    assert overrides["num_workers=0"] == resets
    assert overrides["loader=fastloop"] == ("loader=fastloop", *resets)
    started = compose_job("num_workers=2", "multiprocessing_context=spawn")
    (no_workers,) = [each for each in propose_changes(started) if each.name == "num_workers=0"]
    assert no_workers.overrides == ("num_workers=0", "multiprocessing_context=null")
    # Otherwise the change would be left out, as a job that is not supported.
    check_support(compose_job("multiprocessing_context=spawn", *no_workers.overrides))
    single = {each.name: each.overrides for each in propose_changes(compose_job())}
    assert single["loader=fastloop"] == ("loader=fastloop",)


def gain_of(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    low, high = value if low is None else low, value if high is None else high
    return Estimate(value=value, low=low, high=high, is_interval=True)


def candidate(name: str, gain: float | None) -> ChangedJob:
    change, predicted = Change(overrides=(name,)), None if gain is None else gain_of(gain)
    return ChangedJob(change=change, job=None, predicted_gain=predicted)


@pytest.mark.parametrize(
    ("gains", "tries", "chosen"),
    [
        ((0.1, 0.3, -0.2), 1, ["b", "torch_threads=1"]),
        ((0.1, 0.3, 0.4), 1, ["torch_threads=1"]),
        ((0.01, 0.3, -0.2), 3, ["b", "torch_threads=1"]),
        ((None, None, None), 2, ["a", "b", "torch_threads=1"]),
        ((0.1, 0.3, 0.4), 0, []),
    ],
)
def test_the_best_by_prediction_and_one_thread_are_tried(gains, tries, chosen):
    candidates = list(map(candidate, ("a", "b", "torch_threads=1"), gains))
    assert [each.change.name for each in choose(candidates, tries)] == chosen


def test_without_predictions_other_loaders_are_tried_first():
    names = ("prefetch_factor=4", "persistent_workers=true", "loader=a", "loader=b")
    unknown = [candidate(name, None) for name in names]
    assert [each.change.name for each in choose(unknown, 2)] == ["loader=a", "loader=b"]
    known = [candidate("pin_memory=true", 0.1), *unknown]
    assert [each.change.name for each in choose(known, 1)] == ["pin_memory=true"]


def test_threads_are_a_change_of_loaders_that_take_no_workers(monkeypatch):
    monkeypatch.setattr("fastloop.explain.proposed_changes.usable_cores", lambda: 4)
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    assert [each.name for each in propose_changes(compose_job("loader=fastloop"))] == [
        "torch_threads=1"
    ]


def test_fewer_threads_are_proposed_where_a_quota_gives_fewer_cores(monkeypatch):
    monkeypatch.setattr("fastloop.explain.proposed_changes.usable_cores", lambda: 4)
    monkeypatch.setattr("torch.get_num_threads", lambda: 16)
    names = [each.name for each in propose_changes(compose_job("loader=fastloop"))]
    assert names == ["torch_threads=1", "torch_threads=4"]


def test_of_each_common_cause_the_best_change_is_tried_and_what_the_user_named():
    names = ("loader=a", "num_workers=1", "num_workers=2", "decoder=b", "decoder=c")
    known = list(map(candidate, names, (0.5, 0.1, 0.2, 0.01, -0.1)))
    asked = replace(known[0], change=Change(overrides=("batch_size=8",), is_asked=True))
    asked = replace(asked, predicted_gain=None)
    chosen = [each.change.name for each in choose([*known, asked], 1)]
    assert set(chosen) == {"loader=a", "num_workers=2", "batch_size=8"}
    assert len(chosen) == 3
    assert [each.change.name for each in choose([*known, asked], 0)] == ["batch_size=8"]


def what_if(change: str, realised: tuple[float, float, float] | None):
    gain = gain_of(*realised) if realised else None
    return WhatIf(
        change=change, command=f"run {change}", predicted_gain=gain_of(0.5), realised_gain=gain
    )


def test_best_is_what_was_tried_and_is_beyond_noise():
    noise, small = what_if("noise", (0.6, -0.1, 0.9)), what_if("small", (0.01, 0.005, 0.02))
    untried, sure = what_if("untried", None), what_if("sure", (0.3, 0.2, 0.4))
    assert find_best([noise, small, untried, sure]) is sure
    assert find_best([noise, small, untried]) is None


def explanation_of(ladder, what_ifs):
    return Explanation(
        name="np_memmap digits",
        benchmark="training",
        device="cpu",
        rounds=5,
        window_batches=BATCHES,
        model_ratio=0.98,
        loader_samples_per_s=1234.5,
        limit_samples_per_s=12345.0,
        limit_origin=LimitOrigin(kind="rows", engine="np.take", cores=2),
        verdict=judge(ladder, "training", 0.1),
        ladder=ladder,
        what_ifs=what_ifs,
        best=find_best(what_ifs),
        timeline=InstrumentedEpoch(
            seconds=0.5, batches=29, coverage=0.999, shares={"wait": 0.7, "step": 0.299}
        ),
    )


@pytest.mark.parametrize(
    ("gain", "last"),
    [
        ((0.3, 0.2, 0.4), "best: run x"),
        ((0.0, -0.1, 0.04), "nothing that was tried saves more than 4.0 %"),
        ((0.0, -0.1, 0.3), "nothing that was tried is beyond noise; it may save up to 30 %"),
        (None, "nothing was tried"),
    ],
)
def test_text_and_json_agree(gain, last):
    ladder = build_ladder(rounds(step=1, copy=1, read=3), BATCHES, {})
    explanation = explanation_of(ladder, (what_if("x", gain),))
    text, values = format_explanation(explanation), json.loads(to_json(explanation))
    assert text.splitlines()[-1].startswith(last)
    assert "verdict: read" in text
    limit = "delivers 1,234 samples/s, 10 % of what 2 cores can gather in memory (12,345)"
    assert limit in text.replace("\n", " ")
    assert "waits for data 67 %" in text
    flat = text.replace("\n", " ")
    assert "29 batches took 0.5 s; the recorded parts explain 99.9 % of it: wait 70 %" in flat
    assert values["verdict"]["word"] == "read"
    assert values["ladder"]["rows"][-1]["rung"] == "read"
    assert values["ladder"]["rows"][-1]["hidden_ms"] is None


@pytest.mark.parametrize(
    ("may_try", "reason"), [(False, "try=0"), (True, "no change seemed worth it or could run")]
)
def test_last_line_says_why_nothing_was_tried(may_try, reason):
    ladder = build_ladder(rounds(step=1, copy=1, read=3), BATCHES, {})
    text = format_explanation(explanation_of(ladder, (what_if("x", None),)), may_try)
    assert text.splitlines()[-1] == f"nothing was tried: {reason}"


def noisy_rounds(generator, noise: float, **seconds: float) -> list[dict[Part, EpochTimes]]:
    """Five rounds in which every pass has noise of its own; 0.1 % of each is in next()."""
    drawn = []
    for _ in range(5):
        noisy = {
            Part[n.upper()]: s * np.exp(noise * generator.normal()) for n, s in seconds.items()
        }
        drawn.append(
            {
                rung: EpochTimes(
                    seconds=value,
                    batches=BATCHES,
                    first_wait_s=0.001 * value / BATCHES,
                    later_wait_s=0.001 * value / BATCHES,
                    end_s=0.0,
                )
                for rung, value in noisy.items()
            }
        )
    return drawn


# A step of 207 ms over a dataset that makes an epoch in 3.4 ms: step alone, and with ready samples.
HEAVY = {"step": 3.32, "copy": 3.4, "hand_off": 4.7, "collate": 5.8, "decode": 4.64}


@pytest.mark.parametrize("work_s", [None, {}])
def test_a_loader_that_takes_no_time_alone_can_not_be_waited_for(work_s):
    shares = (0.00073,)
    for seed in range(20):
        timed = noisy_rounds(np.random.default_rng(seed), 0.04, **HEAVY)
        ladder = build_ladder(timed, BATCHES, work_s, loader_shares=shares)
        verdict = judge(ladder, "training", 0.1)
        assert verdict.word == "step"
        assert "limited by its step: a perfect loader would save at most 0." in verdict.sentences[0]
        assert ladder.wait_share.high < 0.01
        assert ladder.explained == pytest.approx(1, abs=0.01)
        assert ladder.residue < 0.01
        assert not is_imprecise(ladder)


def test_time_in_next_bounds_what_noisy_steps_seem_to_wait():
    # On the CPU a loop of the user's own has no copies: all of its wait is in next().
    seconds, words = dict.fromkeys(("step", "hand_off", "collate", "decode"), 1.0), []
    for seed in range(20):
        timed = noisy_rounds(np.random.default_rng(seed), 0.3, **seconds)
        words.append(judge(build_ladder(timed, BATCHES, None), "loop", 0.1).word)
    assert words.count("step") >= 19


def test_what_the_loader_takes_alone_leaves_a_true_wait_as_it_is():
    seconds = {"step": 1, "copy": 1, "hand_off": 1.1, "collate": 1.2, "decode": 3}
    free = build_ladder(rounds(**seconds), BATCHES, {})
    bounded = build_ladder(rounds(**seconds), BATCHES, {}, loader_shares=(0.7, 0.72, 0.71))
    assert bounded == free
    assert word(bounded) == "decode"


def test_bound_is_as_sure_as_the_loader_alone_was_measured():
    seconds = {"step": 1, "copy": 1, "decode": 2}
    wide = build_ladder(rounds(**seconds), BATCHES, {}, loader_shares=(0.1, 0.3, 0.2))
    assert wide.wait_share.value == pytest.approx(0.2)
    assert wide.wait_share.low < 0.15
    assert wide.wait_share.high > 0.25


def test_one_thread_that_saves_much_is_in_the_first_sentence():
    seconds = {"step": 1, "copy": 1, "decode": 1.01}
    verdict = judge(build_ladder(rounds(**seconds), BATCHES, {}), "training", 0.1)
    tried = [
        what_if("num_workers=2", (0.6, 0.5, 0.7)),
        what_if("torch_threads=2", (0.3, 0.2, 0.4)),
        what_if("torch_threads=1", (0.46, 0.4, 0.52)),
    ]
    said = add_threads(verdict, tried)
    gain = "torch_threads=1 saves 46 % [40 %, 52 %] of it"
    assert said.sentences[0] == f"{verdict.sentences[0]}; {gain}"
    assert (said.word, said.sentences[1:]) == (verdict.word, verdict.sentences[1:])
    for realised in (None, (0.05, 0.04, 0.06), (0.3, -0.1, 0.6)):
        assert add_threads(verdict, [what_if("torch_threads=1", realised)]) == verdict
