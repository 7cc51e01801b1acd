"""Events of copying batches to pinned memory.

DataLoader does so in a thread of the loop's process, or in its next() if it has no workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import local
from typing import Any

from torch.utils.data._utils import pin_memory as module

from fastloop.core.parts import Part
from fastloop.core.spans import now_ns
from fastloop.observe.event_log import EventLog

NAMES = "_pin_memory_loop", "pin_memory"
"""torch's function that the thread runs, and its function that pins a batch."""


@contextmanager
def pinning_recorded(log: EventLog, epoch: int) -> Iterator[None]:
    """A context in which DataLoaders of this process record each pinned batch, under that epoch."""
    originals = {name: getattr(module, name) for name in NAMES}
    probe_pinning(log, epoch)
    try:
        yield
    finally:
        module.__dict__.update(originals)


def probe_pinning(log: EventLog, epoch: int) -> None:
    """Let DataLoaders of this process record each pinned batch from now on, under that epoch."""
    run = module._pin_memory_loop

    def _pin_memory_loop(in_queue: Any, *arguments: Any) -> Any:
        log.here().epoch = epoch
        return run(NumberedQueue(in_queue, log), *arguments)

    module.__dict__.update(
        _pin_memory_loop=_pin_memory_loop, pin_memory=ProbedPinning(module.pin_memory, log)
    )


@dataclass(frozen=True)
class NumberedQueue:
    """The pinning thread's queue of (number, batch): each `get` gives later events its number."""

    queue: Any
    log: EventLog

    def get(self, *arguments: Any, **named: Any) -> Any:
        """The next item."""
        item = self.queue.get(*arguments, **named)
        self.log.here().batch = item[0]
        return item


@dataclass(frozen=True)
class ProbedPinning:
    """torch's function that pins a batch, with an event for each batch."""

    function: Callable[..., Any]
    log: EventLog
    inside: local = field(default_factory=local)

    def __call__(self, data: Any, *arguments: Any, **named: Any) -> Any:
        """The pinned batch."""
        # torch's function calls itself, by its name in the module, for the parts of a batch.
        if getattr(self.inside, "batch", False):
            return self.function(data, *arguments, **named)
        start_ns, self.inside.batch = now_ns(), True
        try:
            return self.function(data, *arguments, **named)
        finally:
            self.inside.batch = False
            self.log.here().add(Part.PIN, start_ns, now_ns())
