"""Draw a pass of a script's loop as a picture, and collect the rows of all passes for a trace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from fastloop.core.current_batch import UNKNOWN
from fastloop.core.parts import Part
from fastloop.explain.attach.attribution import making_events
from fastloop.explain.attach.loop_passes import LoaderPass
from fastloop.explain.attach.loops import Loop
from fastloop.explain.attach.recorded_processes import ProcessRecords
from fastloop.observe.event_log import Event
from fastloop.observe.lane_key import LOOP_LANE, LaneKey
from fastloop.observe.lanes import LaneRow, build_lane_rows
from fastloop.observe.timeline_svg import draw_timeline

MOST_TRACED = 200_000
"""Number of events after which no further pass is added to a trace."""


def draw_loop(loop: Loop, records: Sequence[ProcessRecords]) -> str:
    """An <svg> element of the loop's longest pass: the first one with the most batches."""
    drawn = max(loop.passes, key=lambda each: (len(each.batches), -each.start_ns))
    events = pass_events(drawn, records)
    number = 1 + sorted(loop.passes, key=lambda each: each.start_ns).index(drawn)
    return draw_timeline(events, f"{loop.name}: pass {number} of {len(loop.passes)}")


def lane_rows_of_loops(loops: Sequence[Loop], records: Sequence[ProcessRecords]) -> list[LaneRow]:
    """The rows of all passes; rows of equal process, lane and number are joined."""
    together: dict[tuple[int, LaneKey, int], list[Event]] = defaultdict(list)
    passes = sorted(
        (each for loop in loops for each in loop.passes), key=lambda each: each.start_ns
    )
    count = 0
    for each in passes:
        if count > MOST_TRACED:
            break
        for row in build_lane_rows(pass_events(each, records)):
            together[row.process_id, row.key, row.number] += row.events
            count += len(row.events)
    return [
        LaneRow(key=key, number=number, process_id=process_id, events=tuple(events))
        for (process_id, key, number), events in together.items()
    ]


def pass_events(each: LoaderPass, records: Sequence[ProcessRecords]) -> list[Event]:
    """The events of a pass, with the loop's thread in the loop's lane, and without inner loops."""
    (own,) = [process for process in records if process.process_id == each.process_id]
    loop = [piece for piece in each.own_events if piece.lane == each.lane]
    # A last batch on which no step has ended is left out, see find_passes.
    events = [piece for piece in loop if piece.start_ns < each.stop_ns]
    events += _gaps(events)
    makers = [p for p in records if p.process_id in each.maker_pids]
    events += [event for process in makers for event in making_events(each, process)]
    return [
        replace(event, lane=LOOP_LANE) if event.lane == each.lane else event
        for event in [*events, *_pin_events(each, own)]
    ]


def _gaps(events: Sequence[Event]) -> list[Event]:
    """Gaps between the events of a thread, such as between iter() and the first next()."""
    ordered = sorted(events, key=lambda event: event.start_ns)
    return [
        replace(earlier, part=Part.GAP, start_ns=earlier.stop_ns, stop_ns=start, batch=UNKNOWN)
        for earlier, start in zip(ordered, (each.start_ns for each in ordered[1:]), strict=False)
        if start > earlier.stop_ns
    ]


def _pin_events(each: LoaderPass, own: ProcessRecords) -> list[Event]:
    """Events of DataLoader's pinning thread during the pass."""
    # The events are chosen by their time, because the pinning thread does not know its pass.
    return [
        event
        for event in own.events
        if event.part is Part.PIN
        and event.lane != each.lane
        and each.start_ns <= event.start_ns <= each.stop_ns
    ]
