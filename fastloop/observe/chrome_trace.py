"""Timelines in Chrome's trace event format, with the time axis of torch.profiler's traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastloop.observe.lane_key import LaneKind
from fastloop.observe.lanes import Lane

QUARTER_S = 7_889_238
"""Seconds. torch.profiler's times count from the last multiple of this number since 1970
(libkineto's base time): a float holds such times to a fraction of a microsecond."""
FIRST_THREAD = 5_000_000
"""The thread id of the first lane, greater than any thread id in a profile."""


def format_trace(lanes: Sequence[Lane], unix_offset_ns: int) -> str:
    """The text of a trace of the lanes alone, for ui.perfetto.dev or chrome://tracing.

    unix_offset_ns: see core.spans.unix_offset_ns.
    """
    # With the same base as torch.profiler's, both kinds of traces can be shown together.
    start_ns = min((lane.events[0].start_ns for lane in lanes), default=0) + unix_offset_ns
    base_ns = start_ns // 10**9 // QUARTER_S * QUARTER_S * 10**9
    # A process is named by its first lane.
    firsts = {lane.process_id: lane for lane in reversed(lanes)}
    events = [_name_process(lane) for lane in firsts.values()]
    events += trace_events(lanes, unix_offset_ns - base_ns)
    header = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    return json.dumps({**header, "traceEvents": events}) + "\n"


def trace_events(lanes: Sequence[Lane], offset_ns: int) -> list[dict[str, Any]]:
    """The events of the lanes, each lane as a thread, with times in microseconds.

    offset_ns: event time plus offset_ns is a time of the trace.
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
                "name": str(event.part),
                **place,
                "ts": round((event.start_ns + offset_ns) / 1e3, 3),
                "dur": round((event.stop_ns - event.start_ns) / 1e3, 3),
                "args": {"batch": event.batch},
            }
            for event in lane.events
        ]
    return described


def add_to_profile(text: str, lanes: Sequence[Lane], unix_offset_ns: int) -> str:
    """The text of a trace of torch.profiler, with the lanes added to it.

    text: the trace as torch.profiler has written it. unix_offset_ns: see core.spans.unix_offset_ns.
    """
    trace = json.loads(text)
    offset_ns = unix_offset_ns - trace["baseTimeNanoseconds"]
    # The profile names the loop's process already, so only workers need a name.
    others = {lane.process_id: lane for lane in lanes if lane.key.kind is LaneKind.WORKER}
    trace["traceEvents"] += [_name_process(lane) for lane in others.values()]
    trace["traceEvents"] += trace_events(lanes, offset_ns)
    return json.dumps(trace)


def _name_process(lane: Lane) -> dict[str, Any]:
    name = f"DataLoader {lane.name}" if lane.key.kind is LaneKind.WORKER else lane.name
    return {"ph": "M", "name": "process_name", "pid": lane.process_id, "args": {"name": name}}
