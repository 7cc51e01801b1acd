"""The commonest causes, looked for in jobs of which everything is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from options import compose_job

from fastloop.core.explanation import Ladder, Verdict, WhatIf
from fastloop.core.parts import Part
from fastloop.core.stats import Estimate
from fastloop.explain.causes import find_causes
from fastloop.explain.surroundings import Surroundings

AROUND = Surroundings(
    torch_threads=2,
    visible_cores=2,
    quota=None,
    throttled=0.0,
    in_memory=1.0,
    gain_without_quota=None,
    machine_cores=2,
    load_cpu_share=1.0,
)
GAIN, NOTHING, UNSURE = (0.4, 0.3, 0.5), (0.0, -0.01, 0.01), (0.1, -0.2, 0.3)


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, is_interval=True)


def ladder() -> Ladder:
    one = estimate(1.0, 0.9, 1.1)
    return Ladder(
        rows=(),
        batches=10,
        epoch_s=one,
        perfect_s=one,
        wait_share=estimate(0.3, 0.2, 0.4),
        explained=1.0,
        residue=0.0,
        start_up_s=one,
        noise=0.01,
        slower_steps=None,
        rounds=3,
    )


def what_if(change: str, predicted=None, realised=None) -> WhatIf:
    return WhatIf(
        change=change,
        command="",
        predicted_gain=estimate(*predicted) if predicted else None,
        realised_gain=estimate(*realised) if realised else None,
    )


def causes(*what_ifs: WhatIf, around: Surroundings = AROUND, word=Part.DECODE, overrides=()):
    verdict = Verdict(word=word, sentences=())
    found = find_causes(compose_job(*overrides), around, verdict, ladder(), what_ifs)
    return {each.name: each for each in found}


@pytest.mark.parametrize(
    ("predicted", "realised", "is_found"),
    [
        (None, GAIN, True),
        (GAIN, NOTHING, False),
        (None, UNSURE, None),
        (GAIN, None, None),
        (NOTHING, None, False),
        (None, None, None),
    ],
)
def test_a_cause_is_found_where_removing_it_was_tried_and_gained(predicted, realised, is_found):
    change = what_if("torch_threads=1", predicted, realised)
    cause = causes(change)["torch's threads"]
    assert cause.is_found is is_found
    assert ("torch_threads=1" in cause.text) == bool(predicted or realised)


def test_what_was_tried_counts_more_than_what_was_predicted():
    tried, better = what_if("num_workers=1", None, NOTHING), what_if("num_workers=4", GAIN)
    cause = causes(tried, better)["number of workers"]
    assert cause.is_found is False
    assert cause.text.startswith("0 now; num_workers=1 saves")


def test_workers_that_were_not_tried_are_told_once():
    cause = causes()["number of workers"]
    assert (cause.is_found, cause.text.count("now")) == (None, 1)


def test_what_a_job_does_not_have_is_no_cause():
    names = causes(around=replace(AROUND, torch_threads=1))
    assert names["torch's threads"].is_found is False
    assert names["a quota of CPU"].text == "there is none"
    assert "decoding" not in names
    assert "decoding" in causes(overrides=("dataset=photos",))
    without_dataloader = causes(overrides=("loader=fastloop",))
    assert not {"number of workers", "Python per sample"} & set(without_dataloader)


@pytest.mark.parametrize(
    ("share", "word", "is_found"),
    [
        (0.1, Part.DECODE, True),
        (0.1, Part.COLLATE, True),
        (0.1, Part.STEP, False),
        (0.1, Part.UNATTRIBUTED, None),
    ],
)
def test_samples_that_wait_are_a_cause_if_the_loop_waits_for_them(share, word, is_found):
    around = replace(AROUND, load_cpu_share=share)
    cause = causes(around=around, word=word)["samples that wait"]
    assert cause.is_found is is_found
    assert ("num_workers=8" in cause.advice) == (is_found is True)
    assert f"{100 * share:.0f} %" in cause.text
    computing = replace(AROUND, load_cpu_share=0.9)
    assert "samples that wait" not in causes(around=computing, word=word)
    # Threads of a loader of its own wait for each other.
    assert "samples that wait" not in causes(around=around, overrides=("loader=fastloop",))


def test_cores_that_the_job_may_not_use_are_told():
    assert "the cores it may use" not in causes()
    cause = causes(around=replace(AROUND, machine_cores=56))["the cores it may use"]
    assert cause.is_found is None
    assert cause.text == "2 of 56 cores (affinity)"


@pytest.mark.parametrize(("throttled", "is_found"), [(0.4, True), (0.01, False)])
def test_a_quota_is_a_cause_where_it_stops_the_job(throttled, is_found):
    around = replace(AROUND, quota=1.5, throttled=throttled, gain_without_quota=0.2)
    cause = causes(around=around)["a quota of CPU"]
    assert cause.is_found is is_found
    assert cause.text.startswith("1.5 of 2 cores; it stopped the job in ")
    assert "without it 20 %" in cause.text


@pytest.mark.parametrize(
    ("word", "is_found"),
    [(Part.STEP, True), (Part.DECODE, False), (Part.UNATTRIBUTED, None)],
)
def test_the_step_is_a_cause_by_the_verdict(word, is_found):
    assert causes(word=word)["the step"].is_found is is_found


@pytest.mark.parametrize(
    ("in_memory", "realised", "is_found"),
    [
        (1.0, None, False),
        (None, None, None),
        (0.2, None, None),
        (0.2, (-0.5, -0.6, -0.4), True),
        (0.2, (0.0, -0.01, 0.01), False),
    ],
)
def test_files_that_are_not_in_memory_are_a_cause_where_reading_them_costs(
    in_memory, realised, is_found
):
    around = replace(AROUND, in_memory=in_memory)
    cause = causes(what_if("cache=cold", None, realised), around=around)["files not in memory"]
    assert cause.is_found is is_found
