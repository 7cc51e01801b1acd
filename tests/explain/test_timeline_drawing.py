"""The picture of a timeline, and its trace."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from fastloop.core.parts import Part
from fastloop.observe.chrome_trace import add_to_profile, format_trace
from fastloop.observe.event_log import Event
from fastloop.observe.lane_key import LOOP_LANE, LaneKey, LaneKind
from fastloop.observe.lanes import build_lane_rows
from fastloop.observe.timeline_svg import draw_timeline

MS = 10**6
SVG = "{http://www.w3.org/2000/svg}"


def epoch(num_batches, num_workers):
    """Events of an epoch of batches that a worker makes in 4 ms, with steps of 3 ms."""
    events = [Event(1, LOOP_LANE, Part.START, 0, 5 * MS, 0)]
    for number in range(num_batches):
        start = (5 + 10 * number) * MS
        events += [
            Event(1, LOOP_LANE, Part.WAIT, start, start + 7 * MS, number),
            Event(1, LOOP_LANE, Part.STEP, start + 7 * MS, start + 10 * MS, number),
        ]
        if num_workers:
            worker = number % num_workers
            place = 2 + worker, LaneKey(LaneKind.WORKER, worker)
            events += [
                Event(*place, Part.DECODE, start + 1 * MS, start + 4 * MS, number),
                Event(*place, Part.COLLATE, start + 4 * MS, start + 5 * MS, number),
            ]
    return events


def texts(root, kind):
    return [each.text for each in root.iter(f"{SVG}text") if each.get("class") == kind]


def boxes(root):
    """(x, width, colour, hint) of each box with a hint."""
    return [
        (float(e.get("x")), float(e.get("width")), e.get("fill"), hint.text)
        for e in root.iter(f"{SVG}rect")
        for hint in e.iter(f"{SVG}title")
    ]


def test_short_epoch_is_drawn_whole():
    root = ET.fromstring(draw_timeline(epoch(3, 1), "a <b> & c"))
    assert root.get("role") == "img"
    assert root.find(f"{SVG}title").text == "a <b> & c"
    assert "wait 60.0 %, step 25.7 %, start 14.3 %" in root.find(f"{SVG}desc").text
    assert texts(root, "heading") == ["a <b> & c", "All 3 batches"]
    assert texts(root, "lane") == ["ms", "worker 0", "queue 0", "main"]
    assert texts(root, "tick") == ["0", "5", "10", "15", "20", "25", "30", "35"]
    assert texts(root, "batch").count("2") == 2, "in the worker's row and in the loop's"
    legend = [hint for *_, hint in boxes(root) if "," not in hint]
    drawn = {hint.partition(",")[0] for *_, hint in boxes(root)} - {*legend}
    assert sorted(legend) == ["collate", "decode", "queue", "start", "step", "wait"]
    assert drawn == set(), "each colour is in the legend"


def test_boxes_are_as_wide_as_events_are_long():
    root = ET.fromstring(draw_timeline(epoch(3, 1)))
    waits = [box for box in boxes(root) if (box[3] or "").startswith("wait, 7 ms, batch")]
    scale = 832 / 35  # pixels a millisecond
    assert [x for x, *_ in waits] == pytest.approx(
        [112 + scale * ms for ms in (5, 15, 25)], abs=0.6
    )
    assert [width for _, width, *_ in waits] == pytest.approx([7 * scale] * 3, abs=1.1)
    assert len({colour for _, _, colour, _ in waits}) == 1


def test_long_epoch_shows_its_start_and_its_middle():
    root = ET.fromstring(draw_timeline(epoch(40, 2)))
    _, start, steady = texts(root, "heading")
    assert (start, steady) == ("Start-up: first 8 of 40 batches", "Steady: batches 20 to 27")
    assert texts(root, "lane").count("worker 1") == 2
    assert len(boxes(root)) < 200, "only what is in the two stretches"


def test_tiny_events_are_drawn_as_few_boxes():
    events = epoch(3, 0)
    step = 100
    samples = range(6 * MS, 9 * MS, step)
    events += [Event(1, LOOP_LANE, Part.DECODE, ns, ns + step, 0) for ns in samples]
    root = ET.fromstring(draw_timeline(events))
    drawn = [box for box in boxes(root) if (box[3] or "").startswith("decode")]
    assert len([box for box in drawn if "batch 0" in box[3]]) == 1


def test_timeline_without_batches_is_refused():
    with pytest.raises(ValueError, match="no batch"):
        draw_timeline([Event(1, LOOP_LANE, Part.START, 0, 5, 0)])


def test_trace_counts_microseconds_from_its_base():
    unix_ns = 1_800_000_000 * 10**9
    trace = json.loads(format_trace(build_lane_rows(epoch(3, 1)), unix_ns))
    base = trace["baseTimeNanoseconds"]
    assert 0 < unix_ns - base < 7_889_238 * 10**9
    assert base % (7_889_238 * 10**9) == 0
    (start,) = [e for e in trace["traceEvents"] if e["name"] == "start"]
    assert (start["ts"] * 1000 + base, start["dur"]) == (pytest.approx(unix_ns, abs=1000), 5000)
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert sorted(names) == ["DataLoader worker 0", "main"]


def test_lanes_are_added_to_a_profile_on_its_axis():
    profile = {"baseTimeNanoseconds": 1000, "traceEvents": [{"ph": "X", "name": "aten::add"}]}
    merged = json.loads(add_to_profile(json.dumps(profile), build_lane_rows(epoch(1, 1)), 3000))
    assert merged["traceEvents"][0] == profile["traceEvents"][0]
    (decode,) = [e for e in merged["traceEvents"] if e["name"] == "decode"]
    assert decode["ts"] == (6 * MS + 3000 - 1000) / 1000
    assert decode["args"] == {"batch": 0}
    threads = [e for e in merged["traceEvents"] if e["name"] == "thread_name"]
    assert [e["args"]["name"] for e in threads] == ["worker 0", "queue 0", "main"]
    assert len({e["tid"] for e in threads}) == 3
