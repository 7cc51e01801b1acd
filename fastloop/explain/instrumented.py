"""The instrumented pass of an explained job: an epoch in which everything records what it does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from fastloop.core.plan import PreparedData, Session
from fastloop.core.spans import (
    StepMarks,
    mark,
    ms_between,
    now_ns,
    synchronize,
    unix_offset_ns,
)
from fastloop.explain.passes import benchmark_of
from fastloop.timeline.event_log import MAIN, EventLog, open_log
from fastloop.timeline.events import Event, Stage
from fastloop.timeline.lanes import DEVICE, NO_BATCH, coverage
from fastloop.timeline.loop import watch_calls, watch_epoch
from fastloop.trial.context import JobContext, start_job
from fastloop.trial.job import Job
from fastloop.trial.page_cache import set_cache_state


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The events of an epoch, and when it ran."""

    events: list[Event]
    start_ns: int
    stop_ns: int
    unix_offset_ns: int

    @property
    def loop(self) -> list[Event]:
        """The events of the loop itself."""
        return [event for event in self.events if event.lane == MAIN]

    @property
    def coverage(self) -> float:
        """Share of the epoch that the events of the loop account for."""
        return coverage(self.loop, self.start_ns, self.stop_ns)


def record_epoch(job: Job, prepared: PreparedData) -> Recording:
    """The recording of the job's first epoch of a loader that was just opened, as workers start
    in it; the model has made a step before."""
    context = start_job(job, prepared, 0)
    with context.open_loader() as loader:
        batch = context.first_batch(loader.epochs)
    session = benchmark_of(job).session(context.build_setup(batch))
    consume, _ = session.start(context.step_delivery())
    consume(batch)
    synchronize(context.device)
    with open_log() as log:
        return _record(context, session, log)


def _record(context: JobContext, session: Session, log: EventLog) -> Recording:
    marks = StepMarks(context.device)
    deliver = watch_calls(context.step_delivery(), Stage.COPY, log)
    consume, _ = session.start(marks.mark_start_after(deliver))
    consume = watch_calls(marks.mark_stop_after(consume), Stage.STEP, log)
    with context.with_probe(log).open_loader() as loader:
        set_cache_state(context.job.cache, context.prepared.files, loader)
        synchronize(context.device)
        zero, start_ns = mark(context.device), now_ns()
        for batch in watch_epoch(loader.epochs(0), log, Stage.GAP):
            consume(batch)
        synchronize(context.device)
        stop_ns = now_ns()
    events = log.read()
    if context.device.type == "cuda":
        events += device_steps(marks, zero, start_ns)
    return Recording(
        events=[*events, *_edges(events, start_ns, stop_ns)],
        start_ns=start_ns,
        stop_ns=stop_ns,
        unix_offset_ns=unix_offset_ns(),
    )


def device_steps(marks: StepMarks, zero: Any, zero_ns: int) -> list[Event]:
    """The steps on the device's own clock, which stood at the mark `zero` at `zero_ns`."""
    bounds = [
        tuple(zero_ns + round(ms_between(zero, each) * 1e6) for each in step)
        for step in zip(marks.starts, marks.stops, strict=True)
    ]
    lane = f"{DEVICE} {marks.device}"
    return [
        Event(os.getpid(), lane, Stage.STEP, start_ns, stop_ns, batch)
        for batch, (start_ns, stop_ns) in enumerate(bounds)
    ]


def _edges(events: list[Event], start_ns: int, stop_ns: int) -> list[Event]:
    """Gaps between the clock readings around the loop and its first and last event."""
    loop = [event for event in events if event.lane == MAIN and event.start_ns >= start_ns]
    first_ns, last_ns = min(e.start_ns for e in loop), max(e.stop_ns for e in loop)
    process_id, lane = loop[0].process_id, MAIN
    return [
        Event(process_id, lane, Stage.GAP, start_ns, first_ns, NO_BATCH),
        Event(process_id, lane, Stage.GAP, last_ns, stop_ns, NO_BATCH),
    ]
