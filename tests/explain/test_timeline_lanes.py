"""Lanes of constructed events: what belongs to which batch, and where the time goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastloop.core.parts import Part
from fastloop.observe.event_log import Event
from fastloop.observe.lane_key import LOOP_LANE, LaneKey, LaneKind
from fastloop.observe.lanes import build_lane_rows, coverage, flatten, last_passes, part_seconds

LOOP, FIRST, SECOND = 100, 101, 102
"""Process ids."""


def main(part, start, stop, batch=0):
    return Event(LOOP, LOOP_LANE, part, start, stop, batch)


def worker(number, part, start, stop, batch):
    return Event(FIRST + number, LaneKey(LaneKind.WORKER, number), part, start, stop, batch)


EPOCH = [
    main(Part.START, 0, 10),
    main(Part.WAIT, 10, 30, 0),
    main(Part.STEP, 30, 40, 0),
    main(Part.WAIT, 40, 60, 1),
    main(Part.STEP, 60, 90, 1),
    main(Part.WAIT, 90, 91, 2),
    main(Part.STEP, 91, 99, 2),
    main(Part.END, 99, 100, 3),
]
WORK = [
    worker(0, Part.DECODE, 5, 15, 0),
    worker(0, Part.COLLATE, 15, 20, 0),
    worker(1, Part.DECODE, 6, 40, 1),
    worker(1, Part.COLLATE, 40, 50, 1),
    worker(0, Part.DECODE, 20, 60, 2),
    worker(0, Part.COLLATE, 60, 70, 2),
    worker(1, Part.DECODE, 50, 75, 3),
    worker(1, Part.COLLATE, 75, 80, 3),
]


def row_of(rows, name):
    return next(each for each in rows if each.name == name)


def test_batches_of_workers_are_queued_until_they_arrive():
    rows = build_lane_rows([*WORK, *EPOCH])
    assert [each.name for each in rows] == ["worker 0", "queue 0", "worker 1", "queue 1", "main"]
    assert [event.batch for event in row_of(rows, "worker 1").events] == [1, 1, 3, 3]
    queued = [
        (e.process_id, e.batch, e.start_ns, e.stop_ns) for e in row_of(rows, "queue 0").events
    ]
    assert queued == [(FIRST, 0, 20, 30), (FIRST, 2, 70, 91)]
    (waiting,) = row_of(rows, "queue 1").events  # the loop has ended without batch 3
    assert (waiting.part, waiting.start_ns, waiting.stop_ns) == (Part.QUEUE, 50, 60)
    assert row_of(rows, "main").events == tuple(EPOCH)


def test_batches_that_wait_at_once_have_rows_of_their_own():
    late = [main(Part.START, 0, 1), main(Part.WAIT, 1, 100, 0), main(Part.WAIT, 100, 110, 1)]
    made = [worker(0, Part.COLLATE, 10, 20, 0), worker(0, Part.COLLATE, 20, 30, 1)]
    rows = build_lane_rows([*late, *made])
    assert [each.name for each in rows] == ["worker 0", "queue 0", "queue 0 (2)", "main"]
    assert [len(each.events) for each in rows] == [2, 1, 1, 3]


def test_events_of_earlier_passes_of_persistent_workers_are_left_out():
    loop = [main(Part.START, 20, 21), main(Part.WAIT, 21, 30, 0)]
    left = replace(worker(0, Part.COLLATE, 19, 22, 1), pass_number=0)
    made = [replace(worker(each, Part.COLLATE, 23, 24, each), pass_number=1) for each in range(2)]
    assert last_passes([left, *made, *loop]) == [*made, *loop]


def test_pieces_are_of_the_innermost_event():
    outer, inner = main(Part.GAP, 0, 100), main(Part.STEP, 20, 60)
    copy, later = main(Part.COPY, 20, 30), main(Part.WAIT, 100, 110)
    pieces = [(e.part, e.start_ns, e.stop_ns) for e in flatten([later, inner, outer, copy])]
    assert pieces == [
        (Part.GAP, 0, 20),
        (Part.COPY, 20, 30),
        (Part.STEP, 30, 60),
        (Part.GAP, 60, 100),
        (Part.WAIT, 100, 110),
    ]
    seconds = part_seconds([outer, inner, copy, later])
    assert list(seconds) == [Part.GAP, Part.STEP, Part.COPY, Part.WAIT]
    assert seconds[Part.GAP] == pytest.approx(60e-9)


def test_coverage_counts_no_time_twice():
    events = [main(Part.STEP, 10, 60), main(Part.COPY, 20, 30), main(Part.WAIT, 50, 70)]
    assert coverage(events, 0, 100) == pytest.approx(0.6)
    assert coverage(events, 20, 60) == 1
    assert coverage([], 0, 100) == 0


def native(thread, start, stop, batch):
    return Event(
        LOOP, LaneKey(LaneKind.NATIVE, thread), Part.READ, start, stop, batch, pass_number=0
    )


def test_batches_of_native_threads_are_queued_once_all_of_their_pieces_are_made():
    arrivals = [main(Part.WAIT, 10 * k, 10 * k + 9, k) for k in range(4)]
    own = Event(LOOP, LOOP_LANE, Part.READ, 21, 28, 2, pass_number=0)
    pieces = [native(1, 0, 5, 0), native(2, 1, 12, 1)]  # the second one ends in batch 2
    rows = build_lane_rows([*arrivals, own, *pieces])
    names = ["native 1", "native 2", "queue native", "queue native (2)", "main"]
    assert [each.name for each in rows] == names
    queues = [e for row in rows if row.name.startswith("queue") for e in row.events]
    found = sorted((event.batch, event.start_ns, event.stop_ns) for event in queues)
    assert found == [(0, 5, 9), (1, 12, 19), (2, 28, 29), (3, 28, 39)]
