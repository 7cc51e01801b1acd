"""Keys of a timeline's lanes; a lane is the work of a thread or device, or a queue's batches."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

NO_NUMBER = "-"
"""The text in a file's name in place of a number, if the lane has no number."""


class LaneKind(StrEnum):
    """A kind of lanes, by the word that pictures and traces use for it."""

    # Enum's own hash is a slow Python function, and the lane of each event is looked up.
    __hash__ = str.__hash__

    LOOP = "main"
    """The thread of the loop."""
    WORKER = "worker"
    """A worker process of a DataLoader."""
    PROCESS = "process"
    """Any other process that loads for the loop."""
    THREAD = "thread"
    """A further thread of a process."""
    PINNING = "pin"
    """A DataLoader's thread that copies batches to pinned memory."""
    NATIVE = "native"
    """A thread of FastLoader's native core, or all of its threads together."""
    DEVICE = "device"
    """The device that makes the steps."""
    QUEUE = "queue"
    """The batches that are ready and wait for the loop."""


class LaneKey(NamedTuple):
    """The identity of a lane in its process.

    >>> worker = LaneKey(LaneKind.WORKER, 0)
    >>> [each.name for each in (worker, worker.queue, LaneKey(LaneKind.THREAD, 2, worker))]
    ['worker 0', 'queue 0', 'worker 0, thread 2']
    """

    kind: LaneKind
    number: int | None = None
    """The number of the worker or of the thread."""
    of: LaneKey | None = None
    """For a queue: the lane that fills it. For a thread: the lane of its process; None if that is
    the loop's process."""
    device: str = ""
    """The device's name, such as "cuda:0"; empty in all other lanes."""

    @property
    def name(self) -> str:
        """The name in pictures and traces."""
        if self.kind is LaneKind.QUEUE and self.of is not None:
            # Most queues are filled by workers, so their names show only the worker's number.
            return f"{self.kind} {self.of.name.removeprefix(LaneKind.WORKER).strip()}"
        number = "" if self.number is None else self.number
        own = f"{self.kind} {number}{self.device}".strip()
        return own if self.of is None else f"{self.of.name}, {own}"

    @property
    def queue(self) -> LaneKey:
        """The lane of the queue with the batches that this lane has made."""
        return LaneKey(LaneKind.QUEUE, of=self)

    @property
    def process(self) -> LaneKey:
        """The lane of the process: for a thread in a worker, or its queue, the worker's lane."""
        return self if self.of is None else self.of.process

    def encode(self) -> str:
        """The lane as text, for the name of its file in an event log."""
        own = f"{self.kind} {NO_NUMBER if self.number is None else self.number}"
        return own if self.of is None else f"{own} {self.of.encode()}"

    @classmethod
    def decode(cls, text: str) -> LaneKey:
        """The key of a text that `encode` has made."""
        kind, number, *of = text.split(" ", 2)
        owner = cls.decode(of[0]) if of else None
        return cls(LaneKind(kind), None if number == NO_NUMBER else int(number), owner)


LOOP_LANE = LaneKey(LaneKind.LOOP)
"""The lane of the loop."""
