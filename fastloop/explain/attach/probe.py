"""The probe in a process: torch's DataLoader with a reading of the clock around each next().

The classes stay torch's own; a few of their functions are wrapped. What is wrapped keeps its name,
so that it is pickled to spawned workers by that, and found there with or without a probe.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any

import torch

from fastloop.core.spans import now_ns, process_cpu_ns
from fastloop.explain.attach.fetches import probe_fetches, probe_workers
from fastloop.explain.attach.recorder import Recorder
from fastloop.explain.attach.records import END, UNKNOWN, Kind

CPU_EVERY = 8
"""CPU time is read around one step in this many."""
TOTAL_EVERY = 1000
"""Batches in a row of totals."""
STATE = "_fastloop_state"
SETTINGS = ("num_workers", "batch_size", "prefetch_factor", "persistent_workers", "pin_memory")


def probe_module(module: ModuleType, folder: str) -> None:
    """Wrap functions of torch.utils.data.dataloader, in this process and those that it forks."""
    recorder = Recorder(folder)
    loops = LoopProbe(recorder)
    os.register_at_fork(after_in_child=recorder.begin)
    atexit.register(recorder.flush)
    probe_workers(module, recorder)
    probe_fetches(module, recorder)
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = loops.wrap_next(iterator.__next__)
    module.DataLoader.__iter__ = loops.wrap_iter(module.DataLoader.__iter__)


@dataclass
class IterationState:
    """A pass of a loop over a DataLoader."""

    number: int
    passed: int
    """Passes over the same iterator before, as with persistent workers."""
    totals: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Batches, start of the first, nanoseconds in next(), of the next row of totals."""


class LoopProbe:
    """Records each iter() of a DataLoader and each next() of its iterators."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.numbers = itertools.count()
        self.loaders = itertools.count()

    def wrap_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """DataLoader.__iter__ with a record of each call."""

        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            start_ns = now_ns()
            iterator = original(loader)
            self._begin(loader, iterator, start_ns, now_ns())
            return iterator

        return __iter__

    def _begin(self, loader: Any, iterator: Any, start_ns: int, stop_ns: int) -> None:
        number = loader.__dict__.get(STATE)
        if number is None:
            number = loader.__dict__[STATE] = next(self.loaders)
            self.recorder.add_fact(loader=number, **_describe(loader))
        last = getattr(iterator, STATE, None)
        state = IterationState(next(self.numbers), last.passed + 1 if last else 0)
        try:
            setattr(iterator, STATE, state)
        except AttributeError:
            return
        pids = [worker.pid for worker in getattr(iterator, "_workers", ())]
        self.recorder.add_fact(iteration=state.number, loader=number, pids=pids)
        thread = threading.get_ident()
        row = (Kind.ITERATION, state.number, number, start_ns, stop_ns, state.passed, thread)
        self.recorder.add((*row, 0, 0, 0), stop_ns)

    def wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The iterators' __next__ with a record of each call."""
        recorder = self.recorder

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            state = getattr(iterator, STATE, None)
            if state is None:
                return original(iterator)
            # of batches k and k + 1, so that the CPU time of the step between is known
            has_cpu = iterator._num_yielded % CPU_EVERY < 2
            cpu_ns = process_cpu_ns() if has_cpu else UNKNOWN
            start_ns = now_ns()
            try:
                batch = original(iterator)
            except StopIteration:
                _record_end(recorder, state, start_ns)
                raise
            stop_ns = now_ns()
            if recorder.full:
                _add_to_totals(recorder, state, start_ns, stop_ns)
                return batch
            stop_cpu_ns = process_cpu_ns() if has_cpu else UNKNOWN
            number = _number_of_batch(iterator)
            row = (Kind.NEXT, state.number, number, start_ns, stop_ns, cpu_ns, stop_cpu_ns, 0, 0, 0)
            recorder.add(row, stop_ns)
            return batch

        return __next__


def _number_of_batch(iterator: Any) -> int:
    """Number of the last batch of an iterator as its workers know it, or else in its order."""
    return getattr(iterator, "_rcvd_idx", iterator._num_yielded) - 1


def _record_end(recorder: Recorder, state: IterationState, start_ns: int) -> None:
    stop_ns = now_ns()
    if state.totals[0]:
        _write_totals(recorder, state, start_ns)
    row = (Kind.NEXT, state.number, END, start_ns, stop_ns, UNKNOWN, UNKNOWN, 0, 0, 0)
    recorder.add(row, stop_ns)


def _add_to_totals(recorder: Recorder, state: IterationState, start_ns: int, stop_ns: int) -> None:
    totals = state.totals
    if totals[0] >= TOTAL_EVERY:
        _write_totals(recorder, state, start_ns)
    if not totals[0]:
        totals[1] = start_ns
    totals[0] += 1
    totals[2] += stop_ns - start_ns


def _write_totals(recorder: Recorder, state: IterationState, stop_ns: int) -> None:
    batches, start_ns, wait_ns = state.totals
    row = (Kind.TOTAL, state.number, batches, start_ns, stop_ns, wait_ns)
    recorder.add((*row, 0, 0, 0, 0), stop_ns)
    state.totals[:] = [0, 0, 0]


def _describe(loader: Any) -> dict[str, Any]:
    """Facts about a DataLoader: its place in the script, its settings, its dataset."""
    context = getattr(loader, "multiprocessing_context", None)
    return {
        "type": type(loader).__qualname__,
        "place": _place_in_script(),
        "dataset": type(loader.dataset).__qualname__,
        "iterable": isinstance(loader.dataset, torch.utils.data.IterableDataset),
        "start_method": (context or torch.multiprocessing).get_start_method(),
        "torch_threads": torch.get_num_threads(),
        "rank": os.environ.get("RANK"),
        **{name: getattr(loader, name, None) for name in SETTINGS},
    }


def _place_in_script() -> str:
    """File and line that iterates over the DataLoader: the nearest frame outside of libraries."""
    frames = [
        frame
        for frame in _frames(sys._getframe(1))
        if not {"site-packages", "dist-packages"} & {*frame.f_code.co_filename.split(os.sep)}
        and "fastloop/explain/attach" not in frame.f_code.co_filename
        and frame.f_code.co_name != "__iter__"  # of a class derived from DataLoader
    ]
    if not frames:
        return ""
    return f"{os.path.basename(frames[0].f_code.co_filename)}:{frames[0].f_lineno}"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back
