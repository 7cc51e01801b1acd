"""The parts of an epoch: work, or waiting, of a loop or of the processes that load for it."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """A part of an epoch, by the word that timelines, ladders and verdicts use for it."""

    # Enum's own hash is a Python function, which takes longer than all other work of recording an
    # event.
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
    """The step on a batch; in a ladder, steps on batches that are on the device already."""
    GAP = "gap"
    """All that the loop does between a step and the wait for the next batch."""
    FETCH = "fetch"
    """Making a batch; the parts READ to COLLATE may be inside of it."""
    READ = "read"
    """Reading a file or rows of a store."""
    DECODE = "decode"
    """Making a sample, with reading if that can't be told apart."""
    TRANSFORM = "transform"
    COLLATE = "collate"
    QUEUE = "queue"
    """From the end of collate in a worker until the loop has the batch: pickling, queues, pinning,
    and waiting for its turn."""
    PIN = "pin"
    """Copying a batch to pinned memory, by the DataLoader's thread."""

    # These four follow from several measurements; no timeline shows them.
    START_UP = "start-up"
    """Wait for the first batch of an epoch, minus the wait for a later one."""
    HAND_OFF = "hand-off"
    """The loader's own work around batches that are ready: its sampler, processes and queues."""
    CONTENTION = "contention"
    """Time in which a step could go on, but the loader's workers have the cores."""
    UNATTRIBUTED = "unattributed"
    """Loading by a loader that can't be taken apart."""
