"""Record loops over iterables that are not DataLoaders: FastLoaders, and the iterables that a
script passes to fastloop.watch.

A pass is one iteration over the iterable. The records have the same form as those of a pass over a
DataLoader without workers, so that the same code reads both.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader  # noqa: TID251 - a type, of which none is made here
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fastloop.core.parts import Part
from fastloop.core.spans import cpu_ns, now_ns, process_cpu_ns
from fastloop.explain.attach.early_stop import counter_of
from fastloop.explain.attach.loader_facts import SETTINGS, find_rank
from fastloop.explain.attach.loader_places import place_in_script, place_of_pass
from fastloop.explain.attach.loop_states import LOADER_NUMBERS, PASS_NUMBERS, LoaderState, PassState
from fastloop.explain.attach.recorded_processes import open_script_log
from fastloop.explain.attach.usage_probe import PassUsage
from fastloop.observe.event_log import EventLog, ThreadLog

if TYPE_CHECKING:
    from fastloop.fastloader import FastLoader

T = TypeVar("T")
RECORDED = DataLoader, _BaseDataLoaderIter
"""Classes of iterables for which patch_dataloader.py records every loop already."""


def watch_loops(iterable: Iterable[T], folder: Path) -> Iterable[T]:
    """A wrapper of the iterable that records each next(); the iterable itself if its loops are
    recorded already.

    folder: the folder to which this process records.
    """
    from fastloop.fastloader import FastLoader

    if isinstance(iterable, (*RECORDED, FastLoader, Watched, WatchedIterator)):
        return iterable
    recorder = LoopRecorder(str(folder), iterable)
    if isinstance(iterable, Iterator):
        return WatchedIterator(iterable, recorder, now_ns())
    return Watched(iterable, recorder)


def probe_fastloader(module: ModuleType, folder: str) -> None:
    """Wrap FastLoader.__iter__ so that each loop over a FastLoader is recorded to the folder.

    module: the module that contains FastLoader.
    """
    original = module.FastLoader.__iter__

    @functools.wraps(original)
    def __iter__(loader: FastLoader[Any]) -> Iterator[Any]:  # noqa: N807
        start_ns = now_ns()
        recorder = LoopRecorder(folder, loader)
        return WatchedIterator(original(loader), recorder, start_ns)

    module.FastLoader.__iter__ = __iter__


@cache
def _open_log(folder: str) -> EventLog:
    """The log in the folder; each call with the same folder returns the same object, which finds
    the log of a thread faster."""
    return open_script_log(folder)


def _number_loader() -> LoaderState:
    """The state of a loader of this process, with the next number."""
    return LoaderState(next(LOADER_NUMBERS), os.getpid())


class LoopRecorder:
    """Records the passes over an iterable to the log in a folder."""

    def __init__(self, folder: str, iterable: Any) -> None:
        self.log = _open_log(folder)
        self.counter = counter_of(folder)
        """The counter of steps that may end the script early; None: the script runs to its own
        end."""
        self._iterable = iterable
        self._loader = _number_loader()

    def begin(self, place: str, start_ns: int, stop_ns: int) -> PassState:
        """Record the beginning of a pass, and return the state of the pass.

        place: file and line of the loop. start_ns, stop_ns: times before and after iter().
        """
        # In a forked process the iterable is another loader.
        if self._loader.process_id != os.getpid():
            self._loader = _number_loader()
        loader = self._loader
        if not loader.is_described:
            loader.is_described = True
            self.log.add_fact(loader=loader.number, made_at="", **_describe(self._iterable))
        number = next(PASS_NUMBERS)
        self.log.add_fact(
            pass_number=number,
            loader=loader.number,
            earlier_passes=0,
            first_pass=number,
            pids=[],
            place=place,
        )
        self.log.here().add(Part.START, start_ns, stop_ns, 0, number)
        return PassState(
            number=number,
            loader=loader,
            begun_ns=stop_ns,
            place=place,
            earlier_passes=0,
            first_pass=number,
            second_batch_at=1,
            usage=PassUsage(self.log, "steps"),
        )


def _describe(iterable: Any) -> dict[str, Any]:
    """Facts about the iterable, under the names of the facts about a DataLoader."""
    size = getattr(iterable, "batch_size", None)
    dataset = getattr(iterable, "source", iterable)
    return dict.fromkeys(SETTINGS) | {
        "type": type(iterable).__qualname__,
        "dataset": type(dataset).__qualname__,
        "sampler": "",
        "iterable": True,
        "most_workers": 0,
        "is_native": False,
        "is_watched": True,
        "start_method": "",
        "torch_threads": torch.get_num_threads(),
        "rank": find_rank(),
        "num_workers": 0,
        "batch_size": size if isinstance(size, int) else None,
    }


def _refuse_own_name(wrapper: object, name: str) -> None:
    """Raise AttributeError for a name that must not be looked up in the wrapped object."""
    # copy and pickle make a wrapper without attributes, and look up its __setstate__. That wrapper
    # has no wrapped object yet, and the __setstate__ of the latter is for another state.
    if name in ("_iterable", "_iterator") or (name.startswith("__") and name.endswith("__")):
        raise AttributeError(f"{type(wrapper).__name__!r} object has no attribute {name!r}")


class Watched(Generic[T]):
    """Wraps an iterable, and records each loop over it. It has the attributes of the iterable.

    iterable: must not be an iterator. recorder: the recorder of the same iterable.
    """

    def __init__(self, iterable: Iterable[T], recorder: LoopRecorder) -> None:
        self._iterable = iterable
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        _refuse_own_name(self, name)
        return getattr(self._iterable, name)

    def __bool__(self) -> bool:
        # Without this method, `if loader:` would call __len__, which some iterables lack.
        return bool(self._iterable)

    def __len__(self) -> int:
        return len(self._iterable)  # pyright: ignore[reportArgumentType]

    def __iter__(self) -> Iterator[T]:
        start_ns = now_ns()
        return WatchedIterator(iter(self._iterable), self._recorder, start_ns)


class WatchedIterator(Generic[T]):
    """Wraps an iterator over batches, and records each wait and each step.

    A step is the time from one next() to the following one. start_ns: time before iter().
    """

    def __init__(self, iterator: Iterator[T], recorder: LoopRecorder, start_ns: int) -> None:
        self._iterator = iterator
        self._recorder = recorder
        self._start_ns = start_ns
        self._stop_ns = now_ns()
        self._place = place_of_pass()
        self._count = 0
        self._state: PassState | None = None

    def __getattr__(self, name: str) -> Any:
        _refuse_own_name(self, name)
        return getattr(self._iterator, name)

    def __bool__(self) -> bool:
        return bool(self._iterator)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        state = self._state or self._begin_pass()
        here = self._recorder.log.here()
        start_ns = now_ns()
        self._end_step(state, here, start_ns)
        begun_ns = cpu_ns()
        try:
            batch = next(self._iterator)
        except StopIteration:
            here.add(Part.END, start_ns, now_ns(), 0, state.number)
            raise
        spent_ns = cpu_ns() - begun_ns
        stop_ns = now_ns()
        here.add(Part.FETCH, start_ns, stop_ns, self._count, state.number, spent_ns)
        here.add(Part.WAIT, start_ns, stop_ns, self._count, state.number)
        state.begin_step(self._count, stop_ns, process_cpu_ns())
        self._count += 1
        return batch

    def _begin_pass(self) -> PassState:
        """Begin the pass with the first next(), because its caller is the script's loop."""
        # If a thread only calls next(), there is no line of the script: the place of iter() counts.
        place = place_in_script() or self._place
        self._state = self._recorder.begin(place, self._start_ns, self._stop_ns)
        return self._state

    def _end_step(self, state: PassState, here: ThreadLog, stop_ns: int) -> None:
        """Record and count the step on the last batch, if there is a batch; this may end the
        script."""
        state.end_step(here, stop_ns, process_cpu_ns(), has_inner_loop=False)
        if self._count and (counter := self._recorder.counter):
            counter.count_step((state.place, state.loader.made_at), stop_ns - state.step_start_ns)
