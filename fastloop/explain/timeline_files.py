"""The picture and the trace of an explained job's epoch, in the folder of explain.json."""

from __future__ import annotations

from pathlib import Path

from fastloop.core.explanation import TIMELINE_SVG, TIMELINE_TRACE, InstrumentedEpoch
from fastloop.core.files import write_text
from fastloop.core.parts import Part
from fastloop.core.spans import seconds_between
from fastloop.explain.instrumented import Recording
from fastloop.observe.chrome_trace import format_trace
from fastloop.observe.drawing import draw_timeline
from fastloop.observe.lanes import build_lanes, stage_seconds


def write_timeline(recording: Recording, folder: Path, title: str) -> InstrumentedEpoch:
    """Write timeline.svg and timeline.json to the folder; the figures of the recorded epoch."""
    write_text(folder / TIMELINE_SVG, draw_timeline(recording.events, title))
    trace = format_trace(build_lanes(recording.events), recording.unix_offset_ns)
    write_text(folder / TIMELINE_TRACE, trace)
    seconds = seconds_between(recording.start_ns, recording.stop_ns)
    by_stage = stage_seconds(recording.loop)
    return InstrumentedEpoch(
        seconds=seconds,
        batches=sum(event.name is Part.WAIT for event in recording.loop),
        coverage=recording.coverage,
        shares={str(stage): value / seconds for stage, value in by_stage.items()},
    )
