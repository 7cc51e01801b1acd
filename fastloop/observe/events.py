"""The events of a timeline: a stage of a batch, its lane, its start and its stop."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

UNKNOWN = -1
"""The value of a number that is not known or does not exist."""


class Stage(StrEnum):
    """Work, or waiting, of a loop or of a worker."""

    # Enum's own hash is a Python function, which takes longer than all else that records an event.
    __hash__ = str.__hash__

    START = "start"
    """iter(): the start of an epoch, with the start of its workers; in a worker's lane, the start
    of that worker."""
    WAIT = "wait"
    """The loop waits for a batch."""
    END = "end"
    """The loop finds no further batch: the end of an epoch, with the end of its workers."""
    COPY = "copy"
    """Placement of a batch on the device."""
    STEP = "step"
    GAP = "gap"
    """All that the loop does between a step and the wait for the next batch."""
    FETCH = "fetch"
    """Making a batch; the stages READ to COLLATE may be inside of it."""
    READ = "read"
    """Reading a file or rows of a store."""
    DECODE = "decode"
    """Making a sample; reading is included if it can't be told apart."""
    TRANSFORM = "transform"
    COLLATE = "collate"
    QUEUE = "queue"
    """From the end of collate in a worker until the loop has the batch: pickling, queues, pinning,
    and waiting for its turn."""
    PIN = "pin"
    """Copying a batch to pinned memory, by the DataLoader's thread."""


STAGES = tuple(Stage)
WORKER, QUEUE_LANE, PIN_LANE, NATIVE_LANE, DEVICE = "worker", "queue", "pin", "native", "device"
"""Beginnings of the names of lanes. The loop's lane is event_log.MAIN."""


@dataclass(frozen=True, slots=True)
class Event:
    """A stage of a batch, in one lane of one process."""

    process_id: int
    lane: str
    """Who does it, as "main" or "worker 0"; "queue 0" has the finished batches of worker 0."""
    name: Stage
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
