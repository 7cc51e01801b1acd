"""The probe of a job: wrappers with which its DataLoader and its loop record their work as events.

A DataLoader's dataset and functions are wrapped, and record in every process. In the loop every
moment belongs to an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import IterDataPipe, MapDataPipe, default_collate

from fastloop.core.current_batch import UNKNOWN, current_batch
from fastloop.core.parts import Part
from fastloop.core.spans import now_ns
from fastloop.core.types import Epochs
from fastloop.observe.event_log import EventLog
from fastloop.observe.lane_key import LaneKey, LaneKind
from fastloop.observe.probed import ProbedCall, ProbedCollate, ProbedDataset
from fastloop.observe.torch_hooks import loaders_watched

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Probe:
    """Wraps the parts of a DataLoader so that they record events; plain data."""

    log: EventLog
    fetch: Part = Part.DECODE
    """The part as which fetching a sample from the dataset is recorded."""

    def watch_loaders(self) -> AbstractContextManager[None]:
        """A context in which DataLoaders number the batches that they make, see loaders_watched."""
        return loaders_watched(self.log)

    def wrap_dataset(self, dataset: Any) -> Any:
        """The dataset with an event for each fetch; a datapipe is returned unchanged."""
        # torch walks through the graph of a datapipe, which a wrapper would hide.
        is_pipe = isinstance(dataset, IterDataPipe | MapDataPipe)
        return dataset if is_pipe else ProbedDataset(dataset, self.fetch, self.log)

    def wrap_collate(self, collate_fn: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        """The function, or default_collate for None, with an event for each batch."""
        return ProbedCollate(collate_fn or default_collate, self.log)

    def wrap_read(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """The dataset's function that reads a file, with an event for each call, inside a fetch."""
        return ProbedCall(read, Part.READ, self.log)

    def wrap_transform(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        """The function that transforms a sample, with an event for each call, inside a fetch."""
        return ProbedCall(transform, Part.TRANSFORM, self.log)

    def add_pieces(self, pieces: np.ndarray) -> None:
        """Record the work of threads that run no Python.

        pieces: int64 of shape (number of pieces, 4); the columns are the thread (0: the loop's),
        the batch, and start and stop in nanoseconds.
        """
        for thread, batch, start_ns, stop_ns in pieces.tolist():
            lane = LaneKey(LaneKind.NATIVE, thread)
            log = self.log.of_lane(lane) if thread else self.log.here()
            log.add(self.fetch, start_ns, stop_ns, batch)


def watch_epoch(batches: Iterable[T], log: EventLog, body: Part = Part.STEP) -> Iterator[T]:
    """Yield the batches; record iter(), each wait, the loop's work with each batch, and the end.

    body: the part as which the loop's work with a batch is recorded, until the loop asks for the
    next batch; GAP if other events inside of this work show its parts.

    Each event starts at the time at which the event before it stopped, so no time is left out.
    """
    here = log.here()
    start_ns = now_ns()
    iterator = iter(batches)
    here.arrived = 0
    reached_ns = now_ns()
    current = current_batch()
    here.add(Part.START, start_ns, reached_ns, here.arrived)
    current.received = UNKNOWN
    for batch in iterator:
        arrived_ns = now_ns()
        # A DataLoader skips the numbers of batches that the workers of an IterableDataset don't
        # make.
        here.arrived = max(here.arrived, current.received)
        here.add(Part.WAIT, reached_ns, arrived_ns, here.arrived)
        try:
            yield batch
        finally:
            # A loop that breaks closes this generator at its yield; its last batch counts, too.
            reached_ns = now_ns()
            here.add(body, arrived_ns, reached_ns, here.arrived)
        here.arrived += 1
        # The step may have iterated over another DataLoader, which sets this number.
        current.received = UNKNOWN
        # A reference here would keep a batch while the next one is made, and so change the memory
        # that the loader can reuse.
        del batch
    here.add(Part.END, reached_ns, now_ns(), here.arrived)


def watch_epochs(epochs: Epochs, log: EventLog) -> Epochs:
    """The epochs, each recorded as by `watch_epoch`."""
    return lambda epoch: watch_epoch(epochs(epoch), log)


def watch_calls(function: Callable[[T], R], part: Part, log: EventLog) -> Callable[[T], R]:
    """A function that the loop calls with each batch, with an event of this part for each call."""
    here = log.here()

    def call(batch: T) -> R:
        start_ns = now_ns()
        result = function(batch)
        here.add(part, start_ns, now_ns(), here.arrived)
        return result

    return call
