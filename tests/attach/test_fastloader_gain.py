"""The gain that attach predicts for FastLoader follows from what it has measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from loader_passes import loader_pass

from fastloop.explain.attach.fastloader_gain import find_fastloader_gain
from fastloop.explain.attach.loop_model import LoopModel, model_loop
from fastloop.explain.attach.loop_usage import LoopUsage
from fastloop.explain.attach.loops import Loop
from fastloop.explain.attach.recorded_processes import MadeBatch
from fastloop.explain.model import Phase

BATCHES, MS = 400, 10**6
FACTS = {"type": "DataLoader", "dataset": "Photos", "num_workers": 0, "batch_size": 64}


def usage_of(idle: float) -> LoopUsage:
    """One second of making batches, of which a share waits and the rest computes."""
    second, worked = 1e9, (1 - idle) * 1e9
    parts = {"wall_ns": second, "cpu_ns": worked, "process_ns": worked, "delay_ns": 0.0}
    return LoopUsage(makes=({"parts": parts},))


def model_of(
    load_ms: float,
    step_ms: float,
    usage: LoopUsage | None = None,
    collate_ms: float = 0.0,
    **facts: object,
) -> LoopModel:
    """A loop on two cores, in which a batch is made and then stepped on."""
    load_ns, step_ns = int(load_ms * MS), int(step_ms * MS)
    made = MadeBatch(
        batch=0, start_ns=0, collate_ns=load_ns - int(collate_ms * MS), stop_ns=load_ns, cpu_ns=0
    )
    waits = np.zeros((BATCHES, 4), np.int64)
    waits[:, 0] = load_ns
    loop = Loop(
        facts=FACTS | facts,
        passes=(loader_pass(),),
        waits_ns=waits,
        steps_ns=np.full(BATCHES, step_ns, np.int64),
        pass_of=np.zeros(BATCHES, np.int64),
        starts_ns=np.zeros(1, np.int64),
        transform_share=None,
        made=(made,),
        usage=usage or LoopUsage(),
    )
    return LoopModel(
        loop=loop,
        loads=[[Phase(seconds=load_ms / 1e3)]] * BATCHES,
        steps=[[Phase(seconds=step_ms / 1e3)]] * BATCHES,
        workers=loop.facts["num_workers"],
        prefetch=2,
        cores=2.0,
        other_cores=0.0,
        hand_off_s=None,
    )


@pytest.mark.parametrize(("batches", "processes"), [(300, 1), (7000, 1), (7000, 2)])
def test_first_step_of_a_process_does_not_count_for_later_ones(batches, processes):
    """The first step takes as long as 500 others, as it loads libraries."""
    steps = np.full(batches, MS, np.int64)
    steps[:: batches // processes] = 500 * MS
    waits = np.zeros((batches, 4), np.int64)
    waits[:, 0] = MS
    made = MadeBatch(batch=0, start_ns=0, collate_ns=MS, stop_ns=MS, cpu_ns=0)
    loop = replace(
        model_of(1, 1).loop,
        facts=FACTS | {"num_workers": 0},
        passes=tuple(loader_pass(process_id=each) for each in range(processes)),
        waits_ns=waits,
        steps_ns=steps,
        pass_of=np.repeat(np.arange(processes), batches // processes),
        made=(made,) * batches,
    )
    model = model_loop(loop)
    assert model is not None
    present_s = model.once_s + model.seconds(0, 2) * (batches / len(model.steps))
    assert present_s == pytest.approx(loop.seconds, rel=0.01)


def test_waits_of_samples_are_hidden_behind_the_step():
    found = find_fastloader_gain(model_of(10, 10, usage_of(0.8)))
    assert found
    # Of 20 ms, the step's 10 ms, 2 ms of work and 0.7 ms of handing over are left; the loop reads
    # the first 16 of 400 batches itself.
    assert found.gain == pytest.approx((20 - 12.7) / 20 * (384 / 400), abs=0.01)
    assert "waits 80 % of its time" in found.basis


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        # All of reading is work, which may need the interpreter's lock.
        (model_of(10, 10, usage_of(0.0)), "at most 33 %, and only if reading releases the"),
        (model_of(10, 10, LoopUsage()), "does not tell whether its samples wait"),
        (model_of(10, 10, usage_of(0.8), gives_workers=True), "the call passes num_workers=0"),
        (model_of(10, 10, usage_of(0.8), iterable=True), "an iterable in the loop"),
        (model_of(10, 10, usage_of(0.8), num_workers=2), "in shared memory of their own"),
    ],
)
def test_reason_is_told_if_the_evidence_is_missing(model, reason):
    found = find_fastloader_gain(model)
    assert found
    assert found.gain is None
    assert reason in found.basis


@pytest.mark.parametrize(
    "model",
    [
        model_of(0.1, 10, usage_of(0.8)),  # loading takes 1 % of the time
        model_of(0.1, 0.1, usage_of(0.5)),  # handing a batch over takes as long
        model_of(10, 0.01, usage_of(0.9)),  # there is no step to hide reading behind
        model_of(10, 10, usage_of(0.8), is_derived=True),
        model_of(10, 10, usage_of(0.8), type="MyLoader"),
    ],
)
def test_nothing_is_said_of_a_change_that_saves_nothing(model):
    assert find_fastloader_gain(model) is None


def test_resized_images_take_the_time_of_pillow():
    found = find_fastloader_gain(model_of(10, 10, is_native=True, is_resized=True, batch_size=100))
    assert found
    assert found.gain == pytest.approx((1 - 0.28 - 1 / 100) * 10 / 20, abs=0.001)


@pytest.mark.parametrize(
    ("collate_ms", "size", "kept"),
    [(1, 64, 0.1 + 1 / 64), (5, 64, 0.5), (1, 1, 1.0)],  # large rows; single samples
)
def test_tensors_are_read_as_rows_in_at_most_the_time_of_collating(collate_ms, size, kept):
    facts = {"dataset": "TensorDataset", "is_native": True, "is_in_memory": True}
    model = model_of(10, 10, collate_ms=collate_ms, **facts, batch_size=size)
    found = find_fastloader_gain(model)
    assert found
    assert found.gain == pytest.approx((1 - kept) * 10 / 20, abs=0.001)
