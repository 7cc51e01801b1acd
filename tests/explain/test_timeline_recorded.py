"""Recorded epochs of real jobs: all of the loop's time is accounted for."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
import torch
from native_core import needs_core

from fastloop.core.device_time import StepMarks
from fastloop.core.parts import Part
from fastloop.explain.explain_job import write_timeline
from fastloop.explain.record_epoch import device_events, record_epoch
from fastloop.observe.lane_key import LaneKind
from fastloop.observe.lanes import build_lane_rows

TRAINING = ("benchmark=training", "torch_threads=1", "batch_size=8", "epochs=1")
PHOTOS = ("dataset=photos", "dataset.count=24", "dataset.crop=[20,24]")
BY_PROCESS = ("device_prefetch_by=process",)
TRANSFORM = ("transform=normalize", "transform.where=worker")
MAKING = {Part.READ, Part.DECODE, Part.TRANSFORM, Part.COLLATE}


@pytest.mark.parametrize(
    ("overrides", "maker", "parts"),
    [
        (("loader=raw", "num_workers=2", *TRANSFORM, *PHOTOS), "worker 0", MAKING),
        (("loader=raw", *PHOTOS), "main", MAKING - {Part.TRANSFORM}),
        (
            ("loader=torchdata", "num_workers=1", "device_prefetch=1", *BY_PROCESS, *PHOTOS),
            "worker 0",
            {Part.DECODE, Part.READ, Part.COLLATE},
        ),
        (("loader=np_memmap", *PHOTOS), "main", {Part.READ, Part.COLLATE}),
        (
            ("loader=raw", "device_prefetch=1", "device_prefetch_by=thread", *PHOTOS),
            "thread 1",
            MAKING - {Part.TRANSFORM},
        ),
        pytest.param(
            *(("loader=fastloop", "loader.num_threads=1", *PHOTOS), "", {Part.READ}),
            marks=needs_core,  # which records its reads; Python's threads read rows unseen
        ),
        (
            ("loader=fastloop", "loader.store=null", "loader.num_threads=2", *TRANSFORM, *PHOTOS),
            "thread 1",
            MAKING,
        ),
    ],
    ids=[
        "workers",
        "loop",
        "worker of a process",
        "store",
        "thread",
        "fastloop",
        "fastloop's threads",
    ],
)
def test_recorded_epoch_is_accounted_for(overrides, maker, parts, prepared_job, tmp_path):
    job, prepared = prepared_job(*TRAINING, *overrides)
    recording = record_epoch(job, prepared)
    assert recording.coverage >= 0.98
    rows = {row.name: row for row in build_lane_rows(recording.events)}
    loop = [event.part for event in rows["main"].events]
    assert [loop.count(each) for each in (Part.WAIT, Part.COPY, Part.STEP)] == [3, 3, 3]
    assert (loop.count(Part.START), loop.count(Part.END)) == (1, 1)
    makers = {name.split()[0] for name in rows} & {"native", "thread"}
    assert {name.split()[1] for name in rows if name.startswith("queue ")} >= makers
    workers = {row.key for row in rows.values() if row.key.kind is LaneKind.WORKER}
    assert {row.key.of for row in rows.values()} >= workers, "each has a queue"
    numbers = {e.batch for row in rows.values() for e in row.events if e.part in MAKING}
    assert numbers == {0, 1, 2}, "the numbers of the loop"
    made = {e.part for row in rows.values() for e in row.events} & MAKING
    assert made == parts
    if maker:
        assert parts <= {event.part for event in rows[maker].events}
    figures = write_timeline(recording, tmp_path, "a title")
    assert sum(figures.shares.values()) == pytest.approx(1)
    assert (figures.batches, figures.coverage) == (3, recording.coverage)
    assert ET.parse(tmp_path / "timeline.svg").getroot().tag.endswith("svg")
    assert json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]


def test_copies_and_steps_of_a_device_are_on_the_clock_of_the_loop():
    marks = StepMarks(
        torch.device("cpu"), starts=[1_000_000, 5_000_000], stops=[4_000_000, 5_500_000]
    )
    events = device_events(marks, [700_000, 4_000_000], 500_000, 70_000_000)
    assert [(e.lane.name, e.part, e.batch) for e in events] == [
        ("device cpu", Part.COPY, 0),
        ("device cpu", Part.STEP, 0),
        ("device cpu", Part.COPY, 1),
        ("device cpu", Part.STEP, 1),
    ]
    times = [(event.start_ns, event.stop_ns) for event in events]
    assert times == [
        (70_200_000, 70_500_000),
        (70_500_000, 73_500_000),
        (73_500_000, 74_500_000),
        (74_500_000, 75_000_000),
    ]
