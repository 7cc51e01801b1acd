"""What changes do to a job's work, from measurements that are known."""

from __future__ import annotations

from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import cast

import pytest
from options import compose_job

from fastloop.core.parts import Part
from fastloop.explain.batch_passes import BatchTimes, merge_batches
from fastloop.explain.change_effect import Effect, find_effect
from fastloop.explain.explained_job import ExplainedJob
from fastloop.explain.predict import Measured
from fastloop.explain.prediction_input import (
    PartCosts,
    SingleBatches,
    measure_for_model,
    share_of_loading,
)
from fastloop.explain.rung_passes import EpochTimes

TIMES = BatchTimes(load_s=[0.006], load_cpu_s=[0.006], step_s=[0.004], step_cpu_s=[0.004])
MEASURED = Measured(
    batches=10,
    own_threads=TIMES,
    one_thread=TIMES,
    hand_off={},
    kept=0.25,
    decode_share=0.5,
    transform_share=0.2,
    decoders={"turbojpeg": 0.4},
    batch_transform_s=0.001,
)
PHOTOS = ("dataset=photos", "dataset.size=[8,8]")
NORMALIZE = ("transform=normalize", "transform.where=worker")


@pytest.mark.parametrize(
    ("present", "change", "effect"),
    [
        ((), ("num_workers=2",), Effect()),
        ((), ("torch_threads=1",), Effect()),
        ((), ("loader=np_memmap",), Effect(kept=0.25)),
        ((), ("loader=fastloop",), Effect(is_gathered=True)),
        (PHOTOS, ("decoder=turbojpeg",), Effect(kept=0.7)),
        ((*PHOTOS, *NORMALIZE), ("transform.where=device",), Effect(kept=0.8, step_s=0.001)),
        (
            (*PHOTOS, *NORMALIZE),
            ("transform.where=device", "decoder=turbojpeg"),
            Effect(kept=0.5, step_s=0.001),
        ),
        (
            (*PHOTOS, *NORMALIZE),
            ("transform.where=device", "loader=np_memmap"),
            Effect(kept=0.05, step_s=0.001),
        ),
        (PHOTOS, ("decoder=turbojpeg", "loader=np_memmap"), Effect(kept=0.25)),
        ((*PHOTOS, *NORMALIZE), ("transform.where=device", "loader=fastloop"), None),
        (PHOTOS, ("decoder=opencv", "loader=np_memmap"), Effect(kept=0.25)),
        (PHOTOS, ("dataset.size=[16,16]", "loader=np_memmap"), None),
        ((), ("batch_size=128",), None),
        ((), ("cache=warm",), None),
        ((), ("loader=getitems",), None),
        ((), ("loader=fastloop", "loader.store=null"), None),
        (PHOTOS, ("decoder=opencv",), None),
        (PHOTOS, ("dataset.size=[16,16]",), None),
        (PHOTOS, ("decoder=turbojpeg", "dataset.size=[16,16]"), None),
        ((*PHOTOS, *NORMALIZE), ("transform.where=device", "transform.mean=[0.1]"), None),
        ((), ("num_workers=2", "multiprocessing_context=spawn"), None),
        ((), ("precision=bf16",), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_effect_is_known_only_where_something_measured_tells_it(present, change, effect):
    candidate = compose_job(*present, *change)
    found = find_effect(candidate, compose_job(*present), MEASURED)
    assert (found and asdict(found)) == (effect and pytest.approx(asdict(effect)))


def test_a_transform_that_takes_no_batches_has_no_effect_that_is_known():
    present = (*PHOTOS, *NORMALIZE)
    measured = replace(MEASURED, batch_transform_s=None)
    moved = compose_job(*present, "transform.where=device")
    assert find_effect(moved, compose_job(*present), measured) is None


def test_shares_of_loading_are_of_what_is_above_the_copy():
    times = known_times(step=1.0, copy=1.2, hand_off=1.4, decode=2.0, read=2.2)
    assert share_of_loading(Part.DECODE, times) == pytest.approx(0.6)
    assert share_of_loading(Part.READ, times) == pytest.approx(0.2)
    assert share_of_loading(Part.TRANSFORM, times) == 0.0


def known_times(**seconds):
    return {
        Part(name.replace("_", "-")): EpochTimes(
            seconds=each, batches=10, first_wait_s=0, later_wait_s=0, end_s=0
        )
        for name, each in seconds.items()
    }


LOADED = {"hand_off": 2.4, "collate": 2.6, "decode": 3.2, "read": 3.4}
"""Times of rungs above batches that take 2.2 s to be copied and transformed on the device."""


def test_transform_on_the_device_is_no_part_of_loading():
    times = known_times(step=1.0, copy=1.2, transform=2.2, **LOADED)
    assert share_of_loading(Part.TRANSFORM, times) == 0.0
    assert share_of_loading(Part.DECODE, times) == pytest.approx(0.5)
    assert share_of_loading(Part.READ, times) == pytest.approx(0.2 / 1.2)


def kept_with_store(times):
    """The share of loading that stays if samples come from a store, by the model's input."""
    explained = cast("ExplainedJob", SimpleNamespace(whole_batches=10))
    batches = SingleBatches(own_threads=TIMES, one_thread=TIMES)
    return measure_for_model(explained, batches, times, {}, PartCosts()).kept


def test_store_keeps_hand_off_and_collate_and_the_transform_of_workers():
    on_device = known_times(step=1.0, copy=1.2, transform=2.2, **LOADED)
    assert kept_with_store(on_device) == pytest.approx(0.4 / 1.2)
    by_loader = known_times(
        step=1.0, copy=1.2, hand_off=1.4, collate=1.6, transform=2.6, decode=3.2, read=3.4
    )
    assert kept_with_store(by_loader) == pytest.approx(1.4 / 2.2)
    assert kept_with_store(known_times(step=1.0, copy=1.2, decode=3.2)) == 1.0


def test_two_passes_tell_how_much_they_differ():
    slower = replace(TIMES, load_s=[0.016], clone_s=0.1)
    both = merge_batches(TIMES, slower)
    assert both.load_s == [0.006, 0.016]
    assert both.step_s == [0.004, 0.004]
    assert both.difference == pytest.approx(0.693, abs=0.001)
    assert both.clone_s == 0.0
