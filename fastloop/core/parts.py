"""The parts of an epoch: the work and the waits of a loop, and of the loader's processes."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """A part of an epoch, with its name in timelines, ladders and verdicts.

    A timeline shows when each part happened. A ladder shows the time of each part; for a ladder, a
    job is first measured without most parts, and then with more and more of them.
    """

    # Enum's own hash is a Python function, which takes longer than all other work of recording an
    # event.
    __hash__ = str.__hash__

    START = "start"
    """The call of iter(): the start of an epoch, with the start of its workers. In the timeline of
    a worker, the start of that worker."""
    WAIT = "wait"
    """The loop waits for a batch."""
    END = "end"
    """The loop finds no further batch: the end of an epoch, with the end of its workers."""
    COPY = "copy"
    """Placement of a batch on the device."""
    STEP = "step"
    """The step on a batch; in a ladder, steps on batches that are on the device already."""
    GAP = "gap"
    """The work of the loop between a step and the wait for the next batch."""
    FETCH = "fetch"
    """The making of a batch, which may contain the parts READ to COLLATE."""
    READ = "read"
    """The reading of a file, or of rows of a store."""
    DECODE = "decode"
    """The making of a sample; it includes reading if the two can't be told apart."""
    TRANSFORM = "transform"
    """The transform of a sample or of a batch."""
    COLLATE = "collate"
    """The making of a batch from samples."""
    QUEUE = "queue"
    """The way of a finished batch from its maker, such as a worker or a thread, to the loop:
    pickling, queues, pinning, and the wait for the batch's turn."""
    PIN = "pin"
    """The copy of a batch to pinned memory, by the DataLoader's thread."""

    # The next four parts follow from several measurements; no timeline shows them.
    START_UP = "start-up"
    """The time in which the loader starts up in an epoch, for example the start of its workers. In
    a ladder, this is the wait for the first batch minus the wait for a later one, without the work
    on the first batch, plus the time in which the epoch ends."""
    HAND_OFF = "hand-off"
    """The loader's own work around batches that are ready: its sampler, processes and queues."""
    CONTENTION = "contention"
    """The time for which steps wait for cores, because the loader's workers use the cores."""
    UNATTRIBUTED = "unattributed"
    """All work of a loader that can't be taken apart. As the word of a verdict, also: the limiting
    part is not known."""
