"""Timelines in Chrome's trace event format, with the time axis of torch.profiler's traces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastloop.observe.lane_key import LaneKind
from fastloop.observe.lanes import LaneRow

QUARTER_S = 7_889_238
"""Seconds. torch.profiler's times count from the last multiple of this number since 1970
(libkineto's base time): a float holds such times to a fraction of a microsecond."""
FIRST_THREAD = 5_000_000
"""The thread id of the first row, greater than any thread id in a profile."""


def format_trace(rows: Sequence[LaneRow], unix_offset_ns: int) -> str:
    """The text of a trace of the rows alone, for ui.perfetto.dev or chrome://tracing.

    unix_offset_ns: see core.spans.unix_offset_ns.
    """
    # With the same base as torch.profiler's, both kinds of traces can be shown together.
    start_ns = min((row.events[0].start_ns for row in rows), default=0) + unix_offset_ns
    base_ns = start_ns // 10**9 // QUARTER_S * QUARTER_S * 10**9
    # A process is named by its first row.
    firsts = {row.process_id: row for row in reversed(rows)}
    events = [_name_process(row) for row in firsts.values()]
    events += trace_events(rows, unix_offset_ns - base_ns)
    header = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    return json.dumps({**header, "traceEvents": events}) + "\n"


def trace_events(rows: Sequence[LaneRow], offset_ns: int) -> list[dict[str, Any]]:
    """The events of the rows, each row as a thread, with times in microseconds.

    offset_ns: event time plus offset_ns is a time of the trace.
    """
    described: list[dict[str, Any]] = []
    for thread, row in enumerate(rows, FIRST_THREAD):
        place = {"pid": row.process_id, "tid": thread}
        described.append({"ph": "M", "name": "thread_name", **place, "args": {"name": row.name}})
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
            for event in row.events
        ]
    return described


def add_to_profile(text: str, rows: Sequence[LaneRow], unix_offset_ns: int) -> str:
    """The text of a trace of torch.profiler, with the rows added to it.

    text: the trace as torch.profiler has written it. unix_offset_ns: see core.spans.unix_offset_ns.
    """
    trace = json.loads(text)
    offset_ns = unix_offset_ns - trace["baseTimeNanoseconds"]
    # The profile names the loop's process already, so only workers need a name.
    others = {row.process_id: row for row in rows if row.key.kind is LaneKind.WORKER}
    trace["traceEvents"] += [_name_process(row) for row in others.values()]
    trace["traceEvents"] += trace_events(rows, offset_ns)
    return json.dumps(trace)


def _name_process(row: LaneRow) -> dict[str, Any]:
    name = f"DataLoader {row.name}" if row.key.kind is LaneKind.WORKER else row.name
    return {"ph": "M", "name": "process_name", "pid": row.process_id, "args": {"name": name}}
