"""The probe of what makes batches, in workers and in the loop's own process."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fastloop.core.spans import now_ns, process_cpu_ns
from fastloop.explain.attach.recorder import Recorder
from fastloop.explain.attach.records import UNKNOWN, Kind
from fastloop.explain.attach.samples import SampleTimes, time_samples

FIRST, EVERY = 4, 16
"""The samples of the first batches of an epoch are timed, and of one batch in this many."""
OWN_FRAME = re.compile(
    r'  File "[^"\n]*fastloop/explain/attach/[^"\n]*", line \d+, in .*\n(?:    .*\n)*'
)


@dataclass
class FetchState:
    """The batch that a process is making, or has made last."""

    recorder: Recorder
    in_worker: bool = False
    passed: int = 0
    """Epochs that this worker has finished, if it is a persistent one."""
    batches: int = 0
    start_ns: int = 0
    collate_ns: int = 0
    collated_ns: int = 0
    sampled: tuple[int, int, int] = (UNKNOWN, UNKNOWN, UNKNOWN)
    samples: SampleTimes | None = None

    def record(self, batch: int, stop_ns: int) -> None:
        """Record the batch, under its number."""
        recorder, times = self.recorder, self.samples
        made = (self.start_ns, self.collate_ns or stop_ns, self.collated_ns or stop_ns, stop_ns)
        recorder.add((Kind.FETCH, self.passed, batch, *made, *self.sampled), stop_ns)
        for place, (start_ns, end_ns) in enumerate(times.spans if times else ()):
            row = (Kind.SAMPLE, self.passed, batch, place, start_ns, end_ns, 0, 0, 0, 0)
            recorder.add(row, stop_ns)
        self.start_ns = 0


def probe_fetches(module: ModuleType, recorder: Recorder) -> None:
    """Let every fetcher that is created record its batches."""
    kinds = module._DatasetKind
    state_of_process = FetchState(recorder)
    _states.append(state_of_process)
    original = kinds.create_fetcher

    @functools.wraps(original)
    def create_fetcher(*args: Any, **kwargs: Any) -> Any:
        fetcher = original(*args, **kwargs)
        _probe_fetcher(fetcher, state_of_process)
        return fetcher

    kinds.create_fetcher = staticmethod(create_fetcher)


_states: list[FetchState] = []


def _probe_fetcher(fetcher: Any, state: FetchState) -> None:
    fetch, collate = fetcher.fetch, fetcher.collate_fn
    count = 0

    def collate_fn(samples: Any) -> Any:
        state.collate_ns = now_ns()
        batch = collate(samples)
        state.collated_ns = now_ns()
        return batch

    def fetch_batch(index: Any) -> Any:
        nonlocal count
        has_samples = (count < FIRST or count % EVERY == 0) and not state.recorder.full
        count += 1
        state.collate_ns = state.collated_ns = 0
        state.samples, state.sampled = None, (UNKNOWN, UNKNOWN, UNKNOWN)
        state.start_ns = now_ns()
        batch = _fetch_sampled(fetcher, fetch, index, state) if has_samples else fetch(index)
        if not state.in_worker and not state.recorder.full:
            state.record(UNKNOWN, now_ns())
        return batch

    fetcher.fetch, fetcher.collate_fn = fetch_batch, collate_fn


def _fetch_sampled(fetcher: Any, fetch: Callable[[Any], Any], index: Any, state: FetchState) -> Any:
    cpu_ns = process_cpu_ns()
    with time_samples(fetcher) as times:
        batch = fetch(index)
    state.samples = times
    state.sampled = (times.dataset_ns, times.transform_ns, process_cpu_ns() - cpu_ns)
    return batch


def probe_workers(module: ModuleType, recorder: Recorder) -> None:
    """Let workers record the number of each batch, and when it was put into the queue."""
    worker = module._utils.worker
    original = worker._worker_loop
    signature = inspect.signature(original)

    @functools.wraps(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        state = _states[-1]
        state.in_worker = True
        if "data_queue" in bound.arguments:
            queue = ProbedQueue(bound.arguments["data_queue"], state)
            bound.arguments["data_queue"] = queue
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            recorder.flush()

    worker._worker_loop = _worker_loop


class ProbedQueue:
    """The queue of a worker's results, with a record of each batch that is put into it."""

    def __init__(self, queue: Any, state: FetchState) -> None:
        self._queue = queue
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def put(self, item: Any, *args: Any, **kwargs: Any) -> None:
        """Put the worker's (number, batch); a number of another type starts the next epoch."""
        number, batch = item
        if message := getattr(batch, "exc_msg", None):
            batch.exc_msg = OWN_FRAME.sub("", message)
        self._queue.put(item, *args, **kwargs)
        if not isinstance(number, int):
            self._state.passed += 1
        elif self._state.start_ns and not self._state.recorder.full:
            self._state.record(number, now_ns())
