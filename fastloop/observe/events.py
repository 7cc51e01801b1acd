"""The events of a timeline: a part of an epoch, its batch, its lane, its start and its stop."""

from __future__ import annotations

from dataclasses import dataclass

from fastloop.core.parts import Part

UNKNOWN = -1
"""The value of a number that is not known or does not exist."""
WORKER, QUEUE_LANE, PIN_LANE, NATIVE_LANE, DEVICE = "worker", "queue", "pin", "native", "device"
"""Beginnings of the names of lanes. The loop's lane is event_log.MAIN."""


@dataclass(frozen=True, slots=True)
class Event:
    """A part of an epoch, in one lane of one process."""

    process_id: int
    lane: str
    """Who does it, as "main" or "worker 0"; "queue 0" has the finished batches of worker 0."""
    name: Part
    start_ns: int
    """On the clock of core/spans.py, which all processes of a machine share."""
    stop_ns: int
    batch: int
    """Number of the batch, or UNKNOWN; it counts from the start of the pass if `epoch` is known,
    and otherwise from the first event."""
    epoch: int = UNKNOWN
    """Number of the pass over a loader, counted in the process of the event; or UNKNOWN."""
    cpu_ns: int = UNKNOWN
    """CPU time that the process used during the event; or UNKNOWN."""
