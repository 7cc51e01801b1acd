"""Record an epoch of a job for the timeline of `explain`: `record_epoch` returns the events.

An event is a piece of work, with its start and stop: of the loop, of a worker, of a thread of the
loader, or of the device.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from fastloop.core.benchmark import Session
from fastloop.core.current_batch import UNKNOWN
from fastloop.core.device_time import StepMarks, mark, ms_between, synchronize
from fastloop.core.parts import Part
from fastloop.core.prepared_data import PreparedData
from fastloop.core.spans import now_ns, unix_offset_ns
from fastloop.explain.job_facts import benchmark_of
from fastloop.observe.event_log import Event, EventLog, open_log
from fastloop.observe.job_probe import watch_calls, watch_epoch
from fastloop.observe.lane_key import LOOP_LANE, LaneKey, LaneKind
from fastloop.observe.lanes import coverage
from fastloop.trial.job import Job
from fastloop.trial.job_context import JobContext
from fastloop.trial.job_start import start_job
from fastloop.trial.page_cache import set_cache_state
from fastloop.trial.window import Consumer


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The events of an epoch, with its start and stop by the clock of core/spans.py."""

    events: list[Event]
    start_ns: int
    stop_ns: int
    unix_offset_ns: int
    """A time of this clock plus unix_offset_ns is the time since 1970."""

    @property
    def loop(self) -> list[Event]:
        """The events of the loop itself."""
        return [event for event in self.events if event.lane == LOOP_LANE]

    @property
    def coverage(self) -> float:
        """Share of the epoch that the events of the loop account for."""
        return coverage(self.loop, self.start_ns, self.stop_ns)


def record_epoch(job: Job, prepared: PreparedData) -> Recording:
    """Record the first epoch of a new loader of the job, with the start of the loader's workers.

    The model makes one step before this epoch.
    """
    context = start_job(job, prepared, 0)
    # The setup needs a batch, and the first step is slower, as it allocates or compiles. Both are
    # done with another loader, because the recorded loader must be new.
    with context.open_loader() as loader:
        batch = context.first_batch(loader.epochs)
    session = benchmark_of(job).session(context.build_setup(batch))
    consume, _ = session.start(context.step_delivery())
    consume(batch)
    synchronize(context.device)
    with open_log() as log:
        return _record(context, session, log)


def _record(context: JobContext, session: Session, log: EventLog) -> Recording:
    """Record an epoch of a new loader. log: receives the events of all processes of the epoch."""
    marks = StepMarks(context.device)
    asked_marks = []
    deliver = _mark_before(context.step_delivery(), context.device, asked_marks)
    deliver = watch_calls(deliver, Part.COPY, log)
    consume, _ = session.start(marks.mark_start_after(deliver))
    consume = watch_calls(marks.mark_stop_after(consume), Part.STEP, log)
    with context.with_probe(log).open_loader() as loader:
        set_cache_state(context.job.cache, context.prepared.files, loader)
        # The clocks of the device and of the host are read together, while the device is idle. This
        # pair of readings converts times of the device to times of the host.
        synchronize(context.device)
        zero = mark(context.device)
        start_ns = now_ns()
        for batch in watch_epoch(loader.epochs(0), log, Part.GAP):
            consume(batch)
        synchronize(context.device)
        stop_ns = now_ns()
    events = log.read()
    if context.device.type == "cuda":
        events += device_events(marks, asked_marks, zero, start_ns)
    return Recording(
        events=[*events, *_edges(events, start_ns, stop_ns)],
        start_ns=start_ns,
        stop_ns=stop_ns,
        unix_offset_ns=unix_offset_ns(),
    )


def _mark_before(deliver: Consumer, device: torch.device, asked_marks: list[Any]) -> Consumer:
    """The function that delivers a batch, with a mark on the device before each call.

    asked_marks: the list to which the marks are added.
    """

    def call(batch: Any) -> Any:
        asked_marks.append(mark(device))
        return deliver(batch)

    return call


def device_events(marks: StepMarks, asked_marks: list[Any], zero: Any, zero_ns: int) -> list[Event]:
    """Copies and steps as the device ran them, in nanoseconds of the host's clock.

    asked_marks: a mark before each copy; the copy ends at the start of its step. zero: a mark that
    the device passed at zero_ns.
    """

    def at_ns(each: Any) -> int:
        return zero_ns + round(ms_between(zero, each) * 1e6)

    lane = LaneKey(LaneKind.DEVICE, device=str(marks.device))
    events = []
    bounds = zip(asked_marks, marks.starts, marks.stops, strict=True)
    for batch, (asked_ns, start_ns, stop_ns) in enumerate(tuple(map(at_ns, e)) for e in bounds):
        events.append(Event(os.getpid(), lane, Part.COPY, asked_ns, start_ns, batch))
        events.append(Event(os.getpid(), lane, Part.STEP, start_ns, stop_ns, batch))
    return events


def _edges(events: list[Event], start_ns: int, stop_ns: int) -> list[Event]:
    """Two gaps of the loop: from start_ns to its first event, and from its last one to stop_ns."""
    # Work before start_ns, such as placing a batch on the device, may also have recorded events.
    loop = [event for event in events if event.lane == LOOP_LANE and event.start_ns >= start_ns]
    first_ns, last_ns = min(e.start_ns for e in loop), max(e.stop_ns for e in loop)
    process_id = loop[0].process_id
    lane = LOOP_LANE
    return [
        Event(process_id, lane, Part.GAP, start_ns, first_ns, UNKNOWN),
        Event(process_id, lane, Part.GAP, last_ns, stop_ns, UNKNOWN),
    ]
