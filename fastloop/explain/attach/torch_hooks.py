"""The probe in a process: torch's DataLoader with a reading of the clock around each next().

The classes stay torch's own; a few of their functions are wrapped. A wrapped function keeps its
name: it is pickled to spawned workers by this name, and found there with or without a probe.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from fastloop.core.parts import Part
from fastloop.core.spans import now_ns, process_cpu_ns
from fastloop.explain.attach.fetches import probe_fetches, probe_workers
from fastloop.observe.event_log import UNKNOWN, EventLog, ThreadLog
from fastloop.observe.pinning import probe_pinning

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

CPU_EVERY = 8
"""CPU time is read around one step in this many: it is a system call, unlike the clock."""
MOST_EVENTS = 400_000
"""Events of a thread, 19 MB."""
PINNING = 0
"""Epoch of all pinning events: the pinning thread does not know its pass."""
STATE = "_fastloop_state"
SETTINGS = ("num_workers", "batch_size", "prefetch_factor", "persistent_workers", "pin_memory")


def open_script_log(folder: str) -> EventLog:
    """The log of a script's processes."""
    return EventLog(Path(folder), MOST_EVENTS, main_process_id=None, is_lenient=True)


def probe_module(module: ModuleType, folder: str) -> None:
    """Wrap functions of torch.utils.data.dataloader, for this process and its forks."""
    log = open_script_log(folder)
    loops = LoopProbe(log)
    probe_workers(module, log)
    probe_fetches(module, log)
    probe_pinning(log, PINNING)
    iterator = module._BaseDataLoaderIter
    iterator.__next__ = loops.wrap_next(iterator.__next__)
    module.DataLoader.__iter__ = loops.wrap_iter(module.DataLoader.__iter__)


@dataclass
class IterationState:
    """A pass of a loop over a DataLoader, and the step on its last batch."""

    number: int
    passed: int
    """Number of earlier passes over the same iterator, as with persistent workers."""
    batch: int = UNKNOWN
    """Number of the batch that the loop has; UNKNOWN: it has none."""
    start_ns: int = 0
    cpu_ns: int = UNKNOWN

    def begin_step(self, batch: int, start_ns: int, cpu_ns: int) -> None:
        """Note that the loop has the batch."""
        self.batch, self.start_ns, self.cpu_ns = batch, start_ns, cpu_ns

    def end_step(self, here: ThreadLog, stop_ns: int, cpu_ns: int) -> None:
        """Record the step, if there is one, as the loop asks for the next batch."""
        if self.batch == UNKNOWN:
            return
        spent_ns = UNKNOWN if UNKNOWN in (cpu_ns, self.cpu_ns) else cpu_ns - self.cpu_ns
        here.add(Part.STEP, self.start_ns, stop_ns, self.batch, self.number, spent_ns)
        self.batch = UNKNOWN


class LoopProbe:
    """Records each iter() of a DataLoader and each next() of its iterators."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.numbers = itertools.count()
        self.loaders = itertools.count()

    def wrap_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """DataLoader.__iter__ with an event for each call."""

        @functools.wraps(original)
        def __iter__(loader: DataLoader[Any]) -> Any:  # noqa: N807
            start_ns = now_ns()
            iterator = original(loader)
            self._begin(loader, iterator, start_ns, now_ns())
            return iterator

        return __iter__

    def _begin(self, loader: DataLoader[Any], iterator: Any, start_ns: int, stop_ns: int) -> None:
        number = loader.__dict__.get(STATE)
        if number is None:
            number = loader.__dict__[STATE] = next(self.loaders)
            self.log.add_fact(loader=number, **_describe(loader))
        # With persistent workers iter() returns the same iterator again.
        last = getattr(iterator, STATE, None)
        state = IterationState(next(self.numbers), last.passed + 1 if last else 0)
        # A class derived from DataLoader may make another kind of iterator, as a generator, which
        # takes no attributes. It is not recorded.
        try:
            setattr(iterator, STATE, state)
        except AttributeError:
            return
        pids = [worker.pid for worker in getattr(iterator, "_workers", ())]
        facts = {"loader": number, "passed": state.passed, "pids": pids}
        self.log.add_fact(iteration=state.number, **facts)
        self.log.here().add(Part.START, start_ns, stop_ns, 0, state.number)

    def wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The iterators' __next__ with events for the step before, and for the wait."""
        log = self.log

        @functools.wraps(original)
        def __next__(iterator: Any) -> Any:  # noqa: N807
            state = getattr(iterator, STATE, None)
            if state is None:
                return original(iterator)
            here = log.here()
            cpu_ns = process_cpu_ns() if state.cpu_ns != UNKNOWN else UNKNOWN
            start_ns = now_ns()
            state.end_step(here, start_ns, cpu_ns)
            has_cpu = iterator._num_yielded % CPU_EVERY == 0
            # Without workers next() makes the batch in this thread. A Dataset may in turn iterate
            # over another DataLoader, which must leave this loop's numbers as they were.
            outside = here.batch, here.epoch
            here.batch, here.epoch = iterator._num_yielded, state.number
            try:
                batch = original(iterator)
            except StopIteration:
                here.add(Part.END, start_ns, now_ns(), 0, state.number)
                raise
            finally:
                here.batch, here.epoch = outside
            # After the call: an IterableDataset's workers may skip numbers as they end.
            stop_ns, number = now_ns(), _number_of_batch(iterator)
            here.add(Part.WAIT, start_ns, stop_ns, number, state.number)
            state.begin_step(number, stop_ns, process_cpu_ns() if has_cpu else UNKNOWN)
            return batch

        return __next__


def _number_of_batch(iterator: Any) -> int:
    """Number of the iterator's last batch: the workers' number, or without workers its place."""
    return getattr(iterator, "_rcvd_idx", iterator._num_yielded) - 1


def _describe(loader: DataLoader[Any]) -> dict[str, Any]:
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
    # Frames named __iter__ are of classes derived from DataLoader, which all loops share.
    frames = [
        frame
        for frame in _frames(sys._getframe(1))
        if not {"site-packages", "dist-packages"} & {*frame.f_code.co_filename.split(os.sep)}
        and "fastloop/explain/attach" not in frame.f_code.co_filename
        and frame.f_code.co_name != "__iter__"
    ]
    if not frames:
        return ""
    return f"{os.path.basename(frames[0].f_code.co_filename)}:{frames[0].f_lineno}"


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame:
        yield frame
        frame = frame.f_back
