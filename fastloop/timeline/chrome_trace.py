"""Timelines in Chrome's trace event format, on the clock and time axis of torch.profiler's traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastloop.timeline.event_log import MAIN
from fastloop.timeline.lanes import Lane

QUARTER_S = 7_889_238
"""torch.profiler counts from the last whole number of these since 1970 (libkineto's base time), so
that microseconds fit a float."""
FIRST_THREAD = 1_000_000
"""Number of the first lane as a thread: greater than any of the threads in a profile."""


def format_trace(lanes: Sequence[Lane], unix_offset_ns: int) -> str:
    """The text of a trace of the lanes alone, for ui.perfetto.dev or chrome://tracing.

    unix_offset_ns: see core.spans.unix_offset_ns.
    """
    start_ns = min((lane.events[0].start_ns for lane in lanes), default=0) + unix_offset_ns
    base_ns = start_ns // 10**9 // QUARTER_S * QUARTER_S * 10**9
    names = {lane.process_id: _process_name(lane) for lane in lanes}
    events = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in names.items()
    ]
    events += trace_events(lanes, unix_offset_ns - base_ns)
    header = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    return json.dumps({**header, "traceEvents": events}) + "\n"


def trace_events(lanes: Sequence[Lane], offset_ns: int) -> list[dict[str, Any]]:
    """The events of the lanes, each lane as a thread, with times in microseconds.

    offset_ns: to add to a time of an event for the trace's own.
    """
    described: list[dict[str, Any]] = []
    for thread, lane in enumerate(lanes, FIRST_THREAD):
        place = {"pid": lane.process_id, "tid": thread}
        described.append({"ph": "M", "name": "thread_name", **place, "args": {"name": lane.name}})
        order = {"sort_index": thread}
        described.append({"ph": "M", "name": "thread_sort_index", **place, "args": order})
        described += [
            {
                "ph": "X",
                "cat": "loading",
                "name": str(event.name),
                **place,
                "ts": round((event.start_ns + offset_ns) / 1e3, 3),
                "dur": round((event.stop_ns - event.start_ns) / 1e3, 3),
                "args": {"batch": event.batch},
            }
            for event in lane.events
        ]
    return described


def add_to_profile(path: Path, lanes: Sequence[Lane], unix_offset_ns: int) -> None:
    """Add the lanes to torch.profiler's trace at that path; gzipped if its name ends with .gz.

    Raises KeyError for a trace without the time from which it counts, as of torch before 2.3.
    """
    data = path.read_bytes()
    is_zipped = path.suffix == ".gz"
    trace = json.loads(gzip.decompress(data) if is_zipped else data)
    offset_ns = unix_offset_ns - trace["baseTimeNanoseconds"]
    names = {lane.process_id: lane for lane in lanes if lane.name.startswith("worker")}
    trace["traceEvents"] += [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": _process_name(lane)}}
        for pid, lane in names.items()
    ]
    trace["traceEvents"] += trace_events(lanes, offset_ns)
    text = json.dumps(trace).encode()
    path.write_bytes(gzip.compress(text) if is_zipped else text)


def _process_name(lane: Lane) -> str:
    kind, number = (*lane.name.split(), "")[:2]
    return f"DataLoader worker {number}" if kind in ("worker", "queue") else MAIN
