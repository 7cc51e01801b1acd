"""The main process's lane: a loop whose every moment belongs to an event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from fastloop.core.spans import now_ns
from fastloop.core.types import Epochs
from fastloop.timeline.event_log import EventLog
from fastloop.timeline.events import Stage

T = TypeVar("T")
R = TypeVar("R")


def watch_epoch(batches: Iterable[T], log: EventLog, body: Stage = Stage.STEP) -> Iterator[T]:
    """Yield the batches; events for iter(), for each wait, for what the loop does with a batch
    until it asks for the next one, and for the end.

    body: the stage of what the loop does; GAP where events inside of it tell its parts.

    An event starts at the very reading of the clock at which the one before has stopped.
    """
    here, start_ns = log.here(), now_ns()
    iterator, number = iter(batches), here.arrived
    reached_ns = now_ns()
    here.add(Stage.START, start_ns, reached_ns, number)
    for batch in iterator:
        arrived_ns = now_ns()
        here.add(Stage.WAIT, reached_ns, arrived_ns, here.arrived)
        try:
            yield batch
        finally:  # also of the batch at which the loop ends early
            reached_ns = now_ns()
            here.add(body, arrived_ns, reached_ns, here.arrived)
        here.arrived += 1
        del batch  # as a plain loop's variable does not keep it beyond the next one
    here.add(Stage.END, reached_ns, now_ns(), here.arrived)


def watch_epochs(epochs: Epochs, log: EventLog) -> Epochs:
    """The epochs, each watched as by `watch_epoch`."""
    return lambda epoch: watch_epoch(epochs(epoch), log)


def watch_calls(function: Callable[[T], R], stage: Stage, log: EventLog) -> Callable[[T], R]:
    """The function of a batch, which the loop calls, with an event of that stage for each call."""
    here = log.here()

    def call(batch: T) -> R:
        start_ns = now_ns()
        result = function(batch)
        here.add(stage, start_ns, now_ns(), here.arrived)
        return result

    return call
