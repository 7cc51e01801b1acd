"""The main process's lane: a loop in which every moment belongs to an event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from fastloop.core.parts import Part
from fastloop.core.spans import now_ns
from fastloop.core.types import Epochs
from fastloop.observe.event_log import EventLog

T = TypeVar("T")
R = TypeVar("R")


def watch_epoch(batches: Iterable[T], log: EventLog, body: Part = Part.STEP) -> Iterator[T]:
    """Yield the batches; record iter(), each wait, the loop's work with each batch, and the end.

    body: the stage of the loop's work with a batch, until it asks for the next one; GAP if events
    inside of it tell its parts.

    An event starts at the reading of the clock at which the one before has stopped.
    """
    here, start_ns = log.here(), now_ns()
    iterator, number = iter(batches), here.arrived
    reached_ns = now_ns()
    here.add(Part.START, start_ns, reached_ns, number)
    for batch in iterator:
        arrived_ns = now_ns()
        here.add(Part.WAIT, reached_ns, arrived_ns, here.arrived)
        try:
            yield batch
        finally:
            # A loop that breaks closes this generator at its yield; its last batch counts, too.
            reached_ns = now_ns()
            here.add(body, arrived_ns, reached_ns, here.arrived)
        here.arrived += 1
        # A reference here would keep a batch while the next one is made, and so change the memory
        # that the loader can reuse.
        del batch
    here.add(Part.END, reached_ns, now_ns(), here.arrived)


def watch_epochs(epochs: Epochs, log: EventLog) -> Epochs:
    """The epochs, each recorded as by `watch_epoch`."""
    return lambda epoch: watch_epoch(epochs(epoch), log)


def watch_calls(function: Callable[[T], R], stage: Part, log: EventLog) -> Callable[[T], R]:
    """The loop's function of a batch, with an event of the stage for each call."""
    here = log.here()

    def call(batch: T) -> R:
        start_ns = now_ns()
        result = function(batch)
        here.add(stage, start_ns, now_ns(), here.arrived)
        return result

    return call
