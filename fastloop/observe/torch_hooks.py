"""Wrappers of torch's own functions: its threads and workers then know the numbers of batches.

Recorded events need these numbers, because timelines match the events of a batch by its number.
DataLoader numbers the batches of a pass, and sends the number to a worker together with the indices
of the samples. It pins batches in a thread of the loop's process, or in its next() if it has no
workers.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from threading import local
from types import ModuleType
from typing import Any, TypeVar

from torch.utils.data._utils import pin_memory

from fastloop.core.current_batch import UNKNOWN, current_batch
from fastloop.core.parts import Part
from fastloop.core.spans import now_ns
from fastloop.observe.event_log import EventLog
from fastloop.observe.lane_key import LaneKind
from fastloop.observe.warning_frames import skip_in_warnings

SENT = "_fastloop_sent"
"""Attribute of an iterator with the number of the batch that a worker has sent last."""
PINNING = "_pin_memory_loop", "pin_memory"
"""torch's function that the pinning thread runs, and its function that pins a batch."""
WORKER_LOOP = "_worker_loop"
"""The function that a worker of a DataLoader runs."""
WITH_WORKERS = (
    "torch.utils.data._utils.worker",
    "torchdata.stateful_dataloader.stateful_dataloader",
)
"""The modules in which DataLoaders look up `_worker_loop`."""

T = TypeVar("T")


def wrap_queues(
    worker_loop: Callable[..., None], wrappers: Mapping[str, Callable[[Any], Any]]
) -> Callable[..., None]:
    """torch's function that a worker runs, with wrapped queues.

    wrappers: name of the function's argument that is a queue -> function that wraps the queue.
    """
    # The queues are found by name: versions of torch differ in the positions of the arguments.
    signature = inspect.signature(worker_loop)

    @functools.wraps(worker_loop)
    def _worker_loop(*args: Any, **named: Any) -> None:
        bound = signature.bind(*args, **named)
        for name, wrap in wrappers.items():
            if name in bound.arguments:
                bound.arguments[name] = wrap(bound.arguments[name])
        return worker_loop(*bound.args, **bound.kwargs)

    return _worker_loop


class NumberedIndices:
    """A worker's queue of (number, indices), which also sets the number of the current batch.

    After each `get`, `current_batch()` of the worker has the number of the item.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._passed = 0
        """Number of epochs that a persistent worker has finished."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **named: Any) -> Any:
        """(number, indices), None at the end, or torch's marker of the next epoch."""
        item = self._queue.get(*args, **named)
        if isinstance(item, tuple):
            current = current_batch()
            current.number = item[0]
            current.pass_number = self._passed
        # torch's _ResumeIteration, which persistent workers get before each further epoch.
        elif item is not None:
            self._passed += 1
        return item


def follow_numbers(module: ModuleType) -> None:
    """Make iterators of torch's DataLoader keep the number of the batch that a worker sent last.

    module: torch.utils.data.dataloader, which is patched for this process and its forks.
    """
    iterators = module._MultiProcessingDataLoaderIter
    original = iterators._get_data

    @functools.wraps(original)
    @skip_in_warnings
    def _get_data(iterator: Any) -> Any:
        item = original(iterator)
        setattr(iterator, SENT, item[0])
        return item

    iterators._get_data = _get_data


def number_of_batch(iterator: Any) -> int:
    """Number of the iterator's last batch: the workers' number, or without workers its place."""
    # With in_order=False, a batch is delivered as soon as it is ready, but _rcvd_idx does not grow
    # until the batch with its number has come. Iterators of other libraries may have a _get_data of
    # their own, which does not set SENT.
    sent = getattr(iterator, SENT, None)
    if sent is not None and not getattr(iterator, "_in_order", True):
        return sent
    return getattr(iterator, "_rcvd_idx", iterator._num_yielded) - 1


def probe_pinning(log: EventLog) -> None:
    """Make DataLoaders of this process record each pinned batch after this call."""
    run = pin_memory._pin_memory_loop

    def _pin_memory_loop(in_queue: Any, *arguments: Any) -> Any:
        log.here(LaneKind.PINNING)
        return run(NumberedQueue(in_queue), *arguments)

    pin_memory.__dict__.update(
        _pin_memory_loop=_pin_memory_loop, pin_memory=ProbedPinning(pin_memory.pin_memory, log)
    )


@dataclass(frozen=True)
class NumberedQueue:
    """The pinning thread's queue of (number, batch), which also sets the current batch's number.

    After each `get`, `current_batch()` of the thread has the number of the item.
    """

    queue: Any

    def get(self, *arguments: Any, **named: Any) -> Any:
        """The next item."""
        item = self.queue.get(*arguments, **named)
        current_batch().number = item[0]
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
        start_ns = now_ns()
        self.inside.batch = True
        try:
            return self.function(data, *arguments, **named)
        finally:
            self.inside.batch = False
            self.log.here().add(Part.PIN, start_ns, now_ns())


class NumberedWorker:
    """The function that a worker of a DataLoader runs, with its index queue as NumberedIndices.

    It is pickled as the name of the module of torch's own function: a new process imports that
    function from there.
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
    """The __next__ of iterators, which also numbers the batches that it makes in its own thread."""

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
        # If a sample iterates over a DataLoader, the batches of that DataLoader are not the loop's.
        if outside == UNKNOWN:
            current.received = number_of_batch(iterator)
        return batch

    return __next__


@contextmanager
def loaders_watched(log: EventLog) -> Iterator[None]:
    """A context in which DataLoaders of this process number and record their batches.

    The DataLoaders, and the workers that they start, number the batches that they make. Each pinned
    batch is recorded.
    """
    # fastloop attach imports this module before torch.utils.data is complete.
    from torch.utils.data import dataloader

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
