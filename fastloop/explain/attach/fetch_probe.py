"""Record how batches are made, in workers and in the loop's own process, by wrapping fetchers.

A fetcher is torch's object that makes a batch from its indices.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from fastloop.core.current_batch import UNKNOWN
from fastloop.core.parts import Part
from fastloop.core.spans import cpu_ns, now_ns
from fastloop.explain.attach.by_identity import ByIdentity
from fastloop.explain.attach.first_look import FirstBatchCheck
from fastloop.explain.attach.transform_probe import time_transforms
from fastloop.explain.attach.usage_probe import PassUsage
from fastloop.observe.event_log import EventLog
from fastloop.observe.probed import ProbedCollate, ProbedIterator
from fastloop.observe.torch_hooks import NumberedIndices, wrap_queues
from fastloop.observe.warning_frames import skip_in_warnings

TIMED_FIRST, TIMED_EVERY = 2, 16
"""Samples are timed in the first TIMED_FIRST batches of an epoch and in one batch in TIMED_EVERY,
as long as this costs little."""
FREE_BATCHES = 8
"""Number of a dataset's batches in which samples are timed whatever the cost: a script may look at
a few batches before its loop begins."""
COUNTED_FIRST, COUNTED_EVERY = 8, 8
"""Counters are read around the first COUNTED_FIRST batches of an epoch, and later around at most
one batch in COUNTED_EVERY. To ask at every batch whether there is time for a reading would cost
1 us a batch."""
EVENT_NS = 2000
"""Approximate cost of recording an event of a sample."""
MOST_COST = 0.005
"""Share of the time of making batches that events of samples may take after the first
FREE_BATCHES."""
# A frame of the probe in the text of a traceback: the line with its file, and the lines of code and
# markers that follow it.
OWN_FRAME = re.compile(
    r'  File "[^"\n]*fastloop/(?:explain/attach|observe)/[^"\n]*", line \d+, in .*\n(?:    .*\n)*'
)


def probe_fetches(module: ModuleType, log: EventLog) -> None:
    """Let every fetcher that is created record its batches."""
    # torch makes all of its fetchers by this function, in workers and in the loop's own process.
    kinds = module._DatasetKind
    original = kinds.create_fetcher

    @functools.wraps(original)
    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        fetcher = original(*args, **kwargs)
        _probe_fetcher(fetcher, log)
        return fetcher

    kinds.create_fetcher = staticmethod(create_fetcher)


def _probe_fetcher(fetcher: Any, log: EventLog) -> None:
    fetch = fetcher.fetch
    turns = FetchTurns(_budget_of(fetcher.dataset))
    usage = PassUsage(log, "makes")

    @skip_in_warnings
    def make_batch(index: Any, has_samples: bool) -> tuple[Any, int]:
        """The batch, and the CPU time of making it if its samples are recorded."""
        if not has_samples:
            return fetch(index), UNKNOWN
        with _probe_samples(fetcher, log):
            # Only the CPU time of this thread counts. Idle threads of torch may spin while they
            # wait (OMP_WAIT_POLICY); that is not work on the batch.
            begun_ns = cpu_ns()
            batch = fetch(index)
            return batch, cpu_ns() - begun_ns

    @skip_in_warnings
    def fetch_batch(index: Any) -> Any:
        here = log.here()
        events = here.count
        is_first = not turns.batches
        is_counted = turns.is_counted()
        has_samples = turns.has_samples() and here.is_detailed
        check = FirstBatchCheck(fetcher) if is_first else None
        if is_counted:
            usage.begin_part(is_first=is_first)
        start_ns = now_ns()
        try:
            batch, spent_ns = make_batch(index, has_samples)
        finally:
            stop_ns = now_ns()
            # The script may skip an error of the dataset, and go on with this fetcher.
            if check:
                check.restore_collate()
        if is_counted:
            usage.end_part(here.current.pass_number)
        if check:
            reason = check.reason_against_store()
            log.add_fact(
                samples_of=here.current.pass_number, no_store=reason, tensors=_count_tensors(batch)
            )
        turns.end_batch(stop_ns - start_ns, here.count - events if has_samples else 0)
        here.add(Part.FETCH, start_ns, stop_ns, cpu_ns=spent_ns)
        return batch

    fetcher.fetch = fetch_batch
    fetcher.collate_fn = ProbedCollate(fetcher.collate_fn, log)


@dataclass
class SampleBudget:
    """The time that events of a dataset's samples may take in this process."""

    allowed_ns: float = 0.0
    """Nanoseconds that these events may still take; negative if they have taken too much."""
    free_batches: int = FREE_BATCHES
    """Number of batches whose samples are still recorded, whatever time that takes."""


BUDGETS: ByIdentity[SampleBudget] = ByIdentity()
"""The budget of each dataset that this process has read. Epochs share it: in short ones their first
batches would otherwise be most of what is recorded."""


def _budget_of(dataset: Any) -> SampleBudget:
    budget = BUDGETS.get(dataset)
    if budget is None:
        budget = SampleBudget()
        # A list, for example, can't be followed, so each of its passes has a budget of its own.
        with suppress(TypeError):
            BUDGETS[dataset] = budget
    return budget


@dataclass
class FetchTurns:
    """Chooses the batches of a pass in which samples are timed, and those around which counters are
    read: the first ones, and as many others as cost little."""

    budget: SampleBudget
    batches: int = 0

    def has_samples(self) -> bool:
        """True if the samples of the next batch are timed."""
        has_turn = self.batches < TIMED_FIRST or self.batches % TIMED_EVERY == 0
        return has_turn and (self.budget.free_batches > 0 or self.budget.allowed_ns >= 0)

    def is_counted(self) -> bool:
        """True if counters may be read around the next batch."""
        return self.batches < COUNTED_FIRST or self.batches % COUNTED_EVERY == 0

    def end_batch(self, spent_ns: int, events: int) -> None:
        """Account for a batch that was made in that time, with this many events of its samples."""
        self.batches += 1
        if events:
            self.budget.free_batches -= 1
        self.budget.allowed_ns += MOST_COST * spent_ns - EVENT_NS * events


@contextmanager
def _probe_samples(fetcher: Any, log: EventLog) -> Iterator[None]:
    """A context in which the fetcher's samples, and their transforms, are recorded."""
    dataset = fetcher.dataset
    iterator = getattr(fetcher, "dataset_iter", None)
    if iterator is not None:
        fetcher.dataset_iter = ProbedIterator(iterator, Part.DECODE, log)
    else:
        fetcher.dataset = ProbedSamples(dataset, log)
    try:
        with time_transforms(dataset, log):
            yield
    finally:
        fetcher.dataset = dataset
        if iterator is not None:
            fetcher.dataset_iter = iterator


class ProbedSamples:
    """A dataset with an event for each sample."""

    def __init__(self, dataset: Any, log: EventLog) -> None:
        self._dataset = dataset
        self._here = log.here()

    def __getattr__(self, name: str) -> Any:
        # torch also finds __getitems__ in this way, if the dataset has it, and fetches batches as a
        # whole, as without the probe. Tracebacks show the same frames, but no sample is timed.
        return getattr(self._dataset, name)

    @skip_in_warnings
    def __getitem__(self, index: Any) -> Any:
        start_ns = now_ns()
        sample = self._dataset[index]
        self._here.add(Part.DECODE, start_ns, now_ns())
        return sample


def _count_tensors(batch: Any) -> int:
    """Number of tensors of a batch; 0 if it is not known."""
    # The script's objects may raise anything, and a list may contain itself.
    with suppress(Exception):
        return _count_inside(batch)
    return 0


def _count_inside(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return 1
    parts: Any = batch.values() if isinstance(batch, dict) else batch
    is_nested = isinstance(batch, dict | list | tuple)
    return sum(map(_count_inside, parts)) if is_nested else 0


def probe_workers(module: ModuleType) -> None:
    """Let workers know the number and the pass of each batch that they make."""
    worker = module._utils.worker
    wrappers = {"index_queue": NumberedIndices, "data_queue": PlainErrors}
    worker._worker_loop = wrap_queues(worker._worker_loop, wrappers)


class PlainErrors:
    """The queue of a worker's results, which removes the probe's frames from errors."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        """Put the worker's (number, batch)."""
        _, batch = item
        if message := getattr(batch, "exc_msg", None):
            batch.exc_msg = OWN_FRAME.sub("", message)
        self._queue.put(item, *args, **kwargs)
