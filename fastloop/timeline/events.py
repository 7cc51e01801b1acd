"""The events of a timeline: who did what, for which batch, from when to when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

UNKNOWN = -1
"""A number that is not known, or that there is none of."""


class Stage(StrEnum):
    """Work, or waiting, of a loop or of a worker."""

    __hash__ = str.__hash__  # Enum's own is Python, and takes longer than to record an event

    START = "start"
    """iter(): the start of an epoch, with the start of its workers; in a worker, its own start."""
    WAIT = "wait"
    """The loop waits for a batch."""
    END = "end"
    """The loop finds no further batch: the end of an epoch, with the end of its workers."""
    COPY = "copy"
    """Placement of a batch on the device."""
    STEP = "step"
    GAP = "gap"
    """Whatever the loop does between a step and the wait for the next batch."""
    FETCH = "fetch"
    """Making a batch, with the stages below that are told apart inside of it."""
    READ = "read"
    """Reading a file or rows of a store."""
    DECODE = "decode"
    """Making a sample; with its reading, where that can't be told apart."""
    TRANSFORM = "transform"
    COLLATE = "collate"
    QUEUE = "queue"
    """From the end of collate in a worker until the loop has the batch: pickling, queues, pinning,
    and waiting for its turn."""
    PIN = "pin"
    """Copying a batch to pinned memory, by the DataLoader's thread."""


STAGES = tuple(Stage)
WORKER, QUEUE_LANE, PIN_LANE, NATIVE_LANE, DEVICE = "worker", "queue", "pin", "native", "device"
"""Beginnings of the names of lanes; that of the loop is event_log.MAIN."""


@dataclass(frozen=True, slots=True)
class Event:
    """A stage of a batch, in one lane of one process."""

    process_id: int
    lane: str
    """Whoever does it: "main", "worker 0", or "queue 0" for batches of that worker."""
    name: Stage
    start_ns: int
    """On the clock of core/spans.py, which all processes of a machine share."""
    stop_ns: int
    batch: int
    """Number of the batch, since the first event or where the pass is known in it; or UNKNOWN."""
    epoch: int = UNKNOWN
    """Number of the pass over a loader, in the loop's process or in the worker; or UNKNOWN."""
    cpu_ns: int = UNKNOWN
    """CPU time of the process meanwhile; or UNKNOWN."""
