"""The probe of a job: its DataLoader and the loop over it record their work in every process.

A DataLoader's dataset and functions are wrapped. In the loop every moment belongs to an event.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import IterDataPipe, MapDataPipe, dataloader, default_collate
from torch.utils.data._utils import pin_memory

from fastloop.core.current_batch import UNKNOWN, current_batch
from fastloop.core.parts import Part
from fastloop.core.spans import now_ns
from fastloop.core.types import Epochs
from fastloop.observe.event_log import EventLog
from fastloop.observe.lane_key import LaneKey, LaneKind
from fastloop.observe.probed import ProbedCall, ProbedCollate, ProbedDataset
from fastloop.observe.torch_hooks import (
    PINNING,
    NumberedIndices,
    number_of_batch,
    probe_pinning,
    wrap_queues,
)

WORKER_LOOP = "_worker_loop"
"""The function that a worker of a DataLoader runs."""
WITH_WORKERS = (
    "torch.utils.data._utils.worker",
    "torchdata.stateful_dataloader.stateful_dataloader",
)
"""The modules in which DataLoaders find that function."""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Probe:
    """Wraps the parts of a DataLoader; plain data."""

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
        """The dataset's function that reads a file, with an event for each call in the fetch."""
        return ProbedCall(read, Part.READ, self.log)

    def wrap_transform(self, transform: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a sample, with an event for each call in the fetch."""
        return ProbedCall(transform, Part.TRANSFORM, self.log)

    def add_pieces(self, pieces: np.ndarray) -> None:
        """Record the work of threads that run no Python.

        pieces: int64 (pieces, 4), each row the thread (0: the loop's), batch, start and stop.
        """
        for thread, batch, start_ns, stop_ns in pieces.tolist():
            lane = LaneKey(LaneKind.NATIVE, thread)
            log = self.log.of_lane(lane) if thread else self.log.here()
            log.add(self.fetch, start_ns, stop_ns, batch)


class NumberedWorker:
    """The function that a worker of a DataLoader runs, with NumberedIndices.

    It is pickled by the name of its module: a new process finds torch's own function there.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        original = getattr(import_module(module), WORKER_LOOP)
        self._run = wrap_queues(original, {"index_queue": NumberedIndices})

    def __reduce__(self) -> tuple[Any, ...]:
        return NumberedWorker, (self._module,)

    def __call__(self, *args: Any, **named: Any) -> None:
        """Make batches until the DataLoader ends the worker."""
        self._run(*args, **named)


def _number_own(original: Callable[[Any], T]) -> Callable[[Any], T]:
    """The iterators' __next__, which numbers the batches that it makes in its own thread."""

    @functools.wraps(original)
    def __next__(iterator: Any) -> T:  # noqa: N807
        # A Dataset may iterate over another DataLoader; the number is then restored.
        current = current_batch()
        outside = current.number
        current.number = iterator._num_yielded
        try:
            batch = original(iterator)
        finally:
            current.number = outside
        # The batches of a DataLoader that a sample iterates over are not those of the loop.
        if outside == UNKNOWN:
            current.received = number_of_batch(iterator)
        return batch

    return __next__


@contextmanager
def loaders_watched(log: EventLog) -> Iterator[None]:
    """A context in which DataLoaders of this process, and the workers that they start, number the
    batches that they make, and record each pinned batch."""
    iterators: Any = dataloader._BaseDataLoaderIter
    workers = [sys.modules[name] for name in WITH_WORKERS if name in sys.modules]
    places = [(iterators, "__next__"), *((pin_memory, name) for name in PINNING)]
    places += [(module, WORKER_LOOP) for module in workers]
    originals = [(owner, name, getattr(owner, name)) for owner, name in places]
    for module in workers:
        setattr(module, WORKER_LOOP, NumberedWorker(module.__name__))
    iterators.__next__ = _number_own(iterators.__next__)
    probe_pinning(log)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def watch_epoch(batches: Iterable[T], log: EventLog, body: Part = Part.STEP) -> Iterator[T]:
    """Yield the batches; record iter(), each wait, the loop's work with each batch, and the end.

    body: the part as which the loop's work with a batch is recorded, until the loop asks for the
    next one; GAP if events inside of it show its parts.

    An event starts at the reading of the clock at which the one before has stopped.
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
        # A DataLoader skips the numbers of batches that the workers of a stream don't make.
        here.arrived = max(here.arrived, current.received)
        here.add(Part.WAIT, reached_ns, arrived_ns, here.arrived)
        try:
            yield batch
        finally:
            # A loop that breaks closes this generator at its yield; its last batch counts, too.
            reached_ns = now_ns()
            here.add(body, arrived_ns, reached_ns, here.arrived)
        here.arrived += 1
        # The step may have iterated over another DataLoader.
        current.received = UNKNOWN
        # A reference here would keep a batch while the next one is made, and so change the memory
        # that the loader can reuse.
        del batch
    here.add(Part.END, reached_ns, now_ns(), here.arrived)


def watch_epochs(epochs: Epochs, log: EventLog) -> Epochs:
    """The epochs, each recorded as by `watch_epoch`."""
    return lambda epoch: watch_epoch(epochs(epoch), log)


def watch_calls(function: Callable[[T], R], part: Part, log: EventLog) -> Callable[[T], R]:
    """The loop's function of a batch, with an event of this part for each call."""
    here = log.here()

    def call(batch: T) -> R:
        start_ns = now_ns()
        result = function(batch)
        here.add(part, start_ns, now_ns(), here.arrived)
        return result

    return call
