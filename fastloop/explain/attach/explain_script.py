"""Explain a script from the records of its processes, and write the findings to files: as JSON, as
a trace of events, and as an HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from fastloop.core.atomic_files import write_text
from fastloop.core.explanation import TIMELINE_TRACE
from fastloop.core.load_text import describe_load
from fastloop.core.machine_load import Load, summarize_loads
from fastloop.core.spans import unix_offset_ns
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
from fastloop.explain.attach.loop_picture import draw_loop, lane_rows_of_loops
from fastloop.explain.attach.loops import Loop, find_begun, find_loops, find_unseen
from fastloop.explain.attach.rank_comparison import rank_rows
from fastloop.explain.attach.recorded_processes import read_records
from fastloop.observe.chrome_trace import format_trace
from fastloop.reporting.page import render_page

FINDINGS, PAGE = "attach.json", "attach.html"
"""Names of the files with the findings, as JSON and as a page."""
TEMPLATE = Path(__file__).with_name("script_page.html.jinja")


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
        pictures = [draw_loop(loop, processes) for loop in drawn]
        trace = format_trace(lane_rows_of_loops(loops, processes), unix_offset_ns())
        write_text(folder / FINDINGS, to_json(findings))
        write_text(folder / PAGE, draw_page(findings, pictures))
        write_text(folder / TIMELINE_TRACE, trace)
    return findings


def draw_page(findings: ScriptFindings, pictures: Sequence[str]) -> str:
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
