"""Explain a script from the records of its processes, and write the findings to files: as JSON, as
a trace of events, and as an HTML page with a picture of each loop.

A record is an event, such as making a batch, or a fact about a loader. A pass is one iteration over
a DataLoader. Pictures and traces show events in lanes: a lane is a thread or a process.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fastloop.core.atomic_files import write_text
from fastloop.core.current_batch import UNKNOWN
from fastloop.core.explanation import TIMELINE_TRACE
from fastloop.core.load_text import describe_load
from fastloop.core.machine_load import Load, summarize_loads
from fastloop.core.parts import Part
from fastloop.core.spans import unix_offset_ns
from fastloop.explain.attach.attribution import making_events
from fastloop.explain.attach.findings import (
    LoopFindings,
    ScriptFindings,
    describe_loop,
    to_json,
)
from fastloop.explain.attach.findings_text import (
    describe_causes,
    describe_unseen,
    part_rows,
    what_if_rows,
)
from fastloop.explain.attach.loop_passes import LoaderPass
from fastloop.explain.attach.loops import Loop, find_begun, find_loops, find_unseen
from fastloop.explain.attach.rank_comparison import rank_rows
from fastloop.explain.attach.recorded_processes import ProcessRecords, read_records
from fastloop.observe.chrome_trace import format_trace
from fastloop.observe.event_log import Event
from fastloop.observe.lane_key import LOOP_LANE, LaneKey
from fastloop.observe.lanes import LaneRow, build_lane_rows
from fastloop.observe.timeline_svg import draw_timeline
from fastloop.reporting.page import render_page

FINDINGS, PAGE = "attach.json", "attach.html"
"""Names of the files with the findings, as JSON and as a page."""
TEMPLATE = Path(__file__).with_name("script_page.html.jinja")
MOST_TRACED = 200_000
"""Number of events after which no further pass is added to a trace."""


def explain_script(
    records: Path,
    arguments: Sequence[str],
    status: int | None,
    folder: Path,
    load: Load | None = None,
) -> ScriptFindings:
    """The findings about a script. They are written to the folder if the script has a loop over a
    DataLoader.

    status: the script's exit status; negative: the signal that ended it; None: it still runs.
    load: the load by other programs while the script ran; None: not known.
    """
    processes = read_records(records)
    machine_load = summarize_loads([load])
    others = machine_load.other_cores if machine_load else None
    loops = find_loops(processes, others or 0.0)
    findings = ScriptFindings(
        command=shlex.join(arguments),
        status=status,
        loops=tuple(describe_loop(loop) for loop in loops),
        begun=find_begun(processes, loops),
        unseen=find_unseen(processes, loops),
        machine_load=machine_load,
        seconds=load.seconds if load else None,
    )
    if loops:
        drawn = map(_choose_rank, loops, findings.loops)
        pictures = [_draw_loop(loop, processes) for loop in drawn]
        trace = format_trace(_collect_rows(loops, processes), unix_offset_ns())
        write_text(folder / FINDINGS, to_json(findings))
        write_text(folder / PAGE, _draw_page(findings, pictures))
        write_text(folder / TIMELINE_TRACE, trace)
    return findings


def _draw_page(findings: ScriptFindings, pictures: Sequence[str]) -> str:
    """The HTML page: for each loop the verdict, its picture, the parts of its time, and what-ifs.

    pictures: an <svg> element for each loop.
    """
    return render_page(
        TEMPLATE,
        findings=findings,
        load=describe_load(findings.machine_load, "run", "runs"),
        drawn=[*zip(findings.loops, pictures, strict=True)],
        describe_causes=describe_causes,
        describe_unseen=describe_unseen,
        part_rows=part_rows,
        rank_rows=rank_rows,
        what_if_rows=what_if_rows,
    )


def _choose_rank(loop: Loop, found: LoopFindings) -> Loop:
    """The loop of the slowest rank; the loop of all ranks if none is slower."""
    slowest = found.ranks.slowest if found.ranks else None
    return next((each for each in loop.ranks if each.rank == slowest), loop)


def _draw_loop(loop: Loop, records: Sequence[ProcessRecords]) -> str:
    """An <svg> element of the loop's longest pass: the first one with the most batches."""
    drawn = max(loop.passes, key=lambda each: (len(each.batches), -each.start_ns))
    events = _collect_events(drawn, records)
    number = 1 + sorted(loop.passes, key=lambda each: each.start_ns).index(drawn)
    return draw_timeline(events, f"{loop.name}: pass {number} of {len(loop.passes)}")


def _collect_rows(loops: Sequence[Loop], records: Sequence[ProcessRecords]) -> list[LaneRow]:
    """The rows of all passes; rows of equal process, lane and number are joined."""
    together: dict[tuple[int, LaneKey, int], list[Event]] = defaultdict(list)
    passes = sorted(
        (each for loop in loops for each in loop.passes), key=lambda each: each.start_ns
    )
    count = 0
    for each in passes:
        if count > MOST_TRACED:
            break
        for row in build_lane_rows(_collect_events(each, records)):
            together[row.process_id, row.key, row.number] += row.events
            count += len(row.events)
    return [
        LaneRow(key=key, number=number, process_id=process_id, events=tuple(events))
        for (process_id, key, number), events in together.items()
    ]


def _collect_events(drawn: LoaderPass, records: Sequence[ProcessRecords]) -> list[Event]:
    """The events of a pass, with the loop's thread in the loop's lane, and without inner loops."""
    (own,) = [process for process in records if process.process_id == drawn.process_id]
    # A last batch on which no step has ended is left out, see find_passes.
    of_loop = [
        event
        for event in drawn.own_events
        if event.lane == drawn.lane and event.start_ns < drawn.stop_ns
    ]
    of_makers = [
        event
        for process in records
        if process.process_id in drawn.maker_pids
        for event in making_events(drawn, process)
    ]
    return [
        replace(event, lane=LOOP_LANE) if event.lane == drawn.lane else event
        for event in [*of_loop, *_gaps(of_loop), *of_makers, *_pin_events(drawn, own)]
    ]


def _gaps(events: Sequence[Event]) -> list[Event]:
    """Gaps between the events of a thread, such as between iter() and the first next()."""
    ordered = sorted(events, key=lambda event: event.start_ns)
    return [
        replace(earlier, part=Part.GAP, start_ns=earlier.stop_ns, stop_ns=start, batch=UNKNOWN)
        for earlier, start in zip(ordered, (each.start_ns for each in ordered[1:]), strict=False)
        if start > earlier.stop_ns
    ]


def _pin_events(drawn: LoaderPass, own: ProcessRecords) -> list[Event]:
    """Events of DataLoader's pinning thread during the pass."""
    # The events are chosen by their time, because the pinning thread does not know its pass.
    return [
        event
        for event in own.events
        if event.part is Part.PIN
        and event.lane != drawn.lane
        and drawn.start_ns <= event.start_ns <= drawn.stop_ns
    ]
