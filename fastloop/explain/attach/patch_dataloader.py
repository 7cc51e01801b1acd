"""Patch torch's DataLoader in a process of the script: the clock is read around each next().

The classes stay torch's own; a few of their functions are wrapped. A wrapped function keeps its
name: it is pickled to spawned workers by this name, and found there with or without a probe.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from threading import local
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

# The import of torch.utils.data, which has this function, too, may not be complete here.
from torch.utils.data._utils.worker import get_worker_info

from fastloop.core.current_batch import UNKNOWN
from fastloop.core.parts import Part
from fastloop.core.spans import now_ns, process_cpu_ns
from fastloop.explain.attach.early_stop import StopCounter, counter_of
from fastloop.explain.attach.fetch_probe import probe_fetches, probe_workers
from fastloop.explain.attach.loader_facts import import_recognition
from fastloop.explain.attach.loader_places import place_in_script, place_of_pass
from fastloop.explain.attach.loader_registry import LoaderRegistry
from fastloop.explain.attach.loop_states import PASS_NUMBERS, LoaderState, PassState
from fastloop.explain.attach.memory_probe import MEMORY_TURNS
from fastloop.explain.attach.recorded_processes import open_script_log
from fastloop.explain.attach.usage_probe import PassUsage
from fastloop.observe.event_log import EventLog, ThreadLog
from fastloop.observe.torch_hooks import follow_numbers, number_of_batch, probe_pinning
from fastloop.observe.warning_frames import skip_in_warnings

if TYPE_CHECKING:
    from torch.utils.data import DataLoader  # noqa: TID251 - for annotations

CPU_EVERY = 8
"""CPU time is read around one step in this many: it is a system call, unlike the clock."""
MOST_ERROR = 500
"""Number of characters of an error's text that are kept, counted from its end."""
STATE, ORIGIN = "_fastloop_state", "_fastloop_origin"
"""Names of the attributes in which an iterator keeps its PassState and its _Origin; STATE also
marks wrapped methods."""
WORKERS_POSITION = 5
"""Place of num_workers among DataLoader's arguments, after the loader itself."""


def probe_module(module: ModuleType, folder: str) -> None:
    """Wrap functions of torch.utils.data.dataloader: they record loops to the folder, in this
    process and its forks."""
    log = open_script_log(folder)
    MEMORY_TURNS.open()
    loops = LoopProbe(log, module._BaseDataLoaderIter, counter_of(folder))
    loops.loaders.lengths.probe_samplers()
    probe_workers(module)
    probe_fetches(module, log)
    probe_pinning(log)
    follow_numbers(module)
    iterator = module._BaseDataLoaderIter
    iterator.__init__ = loops.wrap_iterator(iterator.__init__)
    iterator.__next__ = loops.wrap_next(iterator.__next__)
    module.DataLoader.__init__ = loops.wrap_init(module.DataLoader.__init__)
    loops.follow_class(module.DataLoader)
    for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):
        kind._reset = follow_reset(kind._reset, loops.begin)


def follow_reset(
    original: Callable[..., None], begin: Callable[[DataLoader[Any], Any, int], None]
) -> Callable[..., None]:
    """An iterator's _reset, which begins a further pass, as over persistent workers.

    begin: called after the reset with the DataLoader, the iterator, and the time before the reset
    in nanoseconds.
    """

    @functools.wraps(original)
    @skip_in_warnings
    def _reset(iterator: Any, loader: DataLoader[Any], first_iter: bool = False) -> None:
        start_ns = now_ns()
        original(iterator, loader, first_iter)
        # The first call is a part of making the iterator.
        if not first_iter:
            begin(loader, iterator, start_ns)

    return _reset


@dataclass(frozen=True)
class _Origin:
    """The DataLoader for which an iterator was made, and the time at which it was made."""

    loader: LoaderState
    start_ns: int
    """Time before the iterator was made."""
    own_ns: int
    """Nanoseconds that the probe took meanwhile, to look at the DataLoader."""


class LoopProbe:
    """Records each pass over a DataLoader, and each next() of its iterators."""

    def __init__(self, log: EventLog, iterators: type, counter: StopCounter | None) -> None:
        self.log = log
        self.iterators = iterators
        self.counter = counter
        self.loaders = LoaderRegistry(log)
        self.last = local()
        """Its attribute `state` is the pass of the last batch that this thread has asked for."""

    def wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        """DataLoader.__init__, which also writes a fact about each new DataLoader."""

        @functools.wraps(original)
        @skip_in_warnings
        def __init__(loader: DataLoader[Any], *args: Any, **named: Any) -> None:  # noqa: N807
            original(loader, *args, **named)
            self._follow_derived(loader)
            import_recognition()
            gives_workers = "num_workers" in named or len(args) > WORKERS_POSITION
            self.loaders.record_made(loader, gives_workers=gives_workers)

        return __init__

    def _follow_derived(self, loader: DataLoader[Any]) -> None:
        # A derived class may start its iterators in its own way.
        for kind in type(loader).__mro__:
            if kind is not object:
                self.follow_class(kind)

    def follow_class(self, kind: type) -> None:
        """Wrap the methods of DataLoader, or of a class derived from it, that start iterators."""
        ways = {"__iter__": self.wrap_iter, "_get_iterator": self.wrap_get_iterator}
        for name, wrap in ways.items():
            method = vars(kind).get(name)
            if isinstance(method, FunctionType) and not hasattr(method, STATE):
                wrapped = wrap(method)
                setattr(wrapped, STATE, True)
                setattr(kind, name, wrapped)

    def wrap_iterator(self, original: Callable[..., None]) -> Callable[..., None]:
        """The iterators' __init__, which keeps the DataLoader and the time for `_begin_late`."""

        @functools.wraps(original)
        @skip_in_warnings
        def __init__(  # noqa: N807
            iterator: Any, loader: DataLoader[Any], *args: Any, **named: Any
        ) -> None:
            start_ns = now_ns()
            original(iterator, loader, *args, **named)
            made_ns = now_ns()
            # A derived class need not call DataLoader.__init__.
            self._follow_derived(loader)
            state = self.loaders.describe_once(loader)
            setattr(iterator, ORIGIN, _Origin(state, start_ns, now_ns() - made_ns))

        return __init__

    def wrap_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """An __iter__ that begins a pass, unless it is a generator, or a function that it calls has
        begun the pass."""

        @functools.wraps(original)
        @skip_in_warnings
        def __iter__(loader: DataLoader[Any]) -> Any:  # noqa: N807
            start_ns = now_ns()
            self.loaders.find_state(loader).asked_ns = start_ns
            iterator = original(loader)
            # A generator begins its pass with its first batch, see wrap_next.
            if isinstance(iterator, self.iterators):
                self.begin(loader, iterator, start_ns)
            return iterator

        return __iter__

    def wrap_get_iterator(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A _get_iterator that begins a pass, unless a function that it calls has begun it."""

        @functools.wraps(original)
        @skip_in_warnings
        def _get_iterator(loader: DataLoader[Any]) -> Any:
            start_ns = now_ns()
            iterator = original(loader)
            self.begin(loader, iterator, start_ns)
            return iterator

        return _get_iterator

    def wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The iterators' __next__ with events for the step before, and for the wait."""
        log = self.log

        @functools.wraps(original)
        @skip_in_warnings
        def __next__(iterator: Any) -> Any:  # noqa: N807
            state = self._find_pass(iterator)
            if state is None:
                return original(iterator)
            here = log.here()
            start_ns = self._end_step(state, here)
            has_cpu = iterator._num_yielded % CPU_EVERY == 0
            # Without workers next() makes the batch in this thread. A Dataset may in turn iterate
            # over another DataLoader, which must leave this loop's numbers as they were.
            current = here.current
            outside = current.number, current.pass_number
            current.number = iterator._num_yielded
            current.pass_number = state.number
            try:
                batch = original(iterator)
            except StopIteration:
                here.add(Part.END, start_ns, now_ns(), 0, state.number)
                state.usage.end_part(state.number, is_last=True)
                raise
            except Exception as error:
                log.add_fact(failed_in=state.number, error=str(error)[-MOST_ERROR:])
                raise
            finally:
                current.number, current.pass_number = outside
            # The number is read after the call, which passes over the numbers of workers that have
            # ended, as those of an IterableDataset do at different times.
            stop_ns = now_ns()
            number = number_of_batch(iterator)
            here.add(Part.WAIT, start_ns, stop_ns, number, state.number)
            state.begin_step(number, stop_ns, process_cpu_ns() if has_cpu else UNKNOWN)
            if has_cpu:
                state.usage.begin_part(is_first=True)
            return batch

        return __next__

    def _find_pass(self, iterator: Any) -> PassState | None:
        """The pass that asks the iterator for a batch; None if nothing is known of the iterator."""
        state: PassState | None = getattr(iterator, STATE, None) or self._begin_late(iterator)
        if state is None:
            return None
        # iter() has returned an iterator that the DataLoader had kept: a further pass begins.
        if state.loader.asked_ns:
            state = self._begin_again(iterator, state)
        if iterator._num_yielded == state.second_batch_at:
            self._correct_place(state)
        return state

    def _correct_place(self, state: PassState) -> None:
        """Record that the place of a pass is the line that asks for its second batch.

        This line is in the loop, while iter() may have been called elsewhere.
        """
        place = place_in_script()
        # A thread that only calls next() has no place in the script.
        if place not in ("", state.place):
            self.log.add_fact(pass_number=state.number, place=place)

    def _end_step(self, state: PassState, here: ThreadLog) -> int:
        """Record the step before this call of next(), if there is one; returns the time."""
        # The CPU time of a step is known only if it was also read at its start.
        cpu_ns = process_cpu_ns() if state.step_start_cpu_ns != UNKNOWN else UNKNOWN
        start_ns = now_ns()
        has_step = state.batch != UNKNOWN
        # A loop inside of the step has waits of its own.
        has_inner_loop = getattr(self.last, "state", None) is not state
        self.last.state = state
        state.end_step(here, start_ns, cpu_ns, has_inner_loop=has_inner_loop)
        # A loop in a worker, such as that of a dataset over another one, must not end the worker
        # alone.
        if self.counter is not None and has_step and get_worker_info() is None:
            loop = (state.place, state.loader.made_at)
            step_ns = start_ns - state.step_start_ns
            self.counter.count_step(loop, step_ns, self.loaders.has_unused)
        return start_ns

    def begin(self, loader: DataLoader[Any], iterator: Any, start_ns: int) -> None:
        """Begin a pass over a new iterator, or over one that was reset, if it has not begun."""
        last: PassState | None = getattr(iterator, STATE, None)
        if last and last.begun_ns >= start_ns:
            return
        stop_ns = now_ns()
        earlier_passes = last.earlier_passes + 1 if last else 0
        origin: _Origin | None = getattr(iterator, ORIGIN, None)
        # An iterator that is reset was made in an earlier pass.
        if origin and origin.start_ns >= start_ns:
            stop_ns -= origin.own_ns
        state = self.loaders.describe_once(loader)
        self._record_pass(iterator, state, earlier_passes, None, start_ns, stop_ns)

    def _begin_late(self, iterator: Any) -> PassState | None:
        """Begin the pass of an iterator that was made by a function that is not wrapped."""
        origin: _Origin | None = getattr(iterator, ORIGIN, None)
        # A class that is derived from the iterators' class need not call their __init__.
        if origin is None:
            return None
        stop_ns = now_ns() - origin.own_ns
        return self._record_pass(iterator, origin.loader, 0, None, origin.start_ns, stop_ns)

    def _begin_again(self, iterator: Any, last: PassState) -> PassState:
        """Begin a pass that goes on with an iterator which the DataLoader has kept."""
        start_ns = last.loader.asked_ns
        return self._record_pass(
            iterator, last.loader, last.earlier_passes, last.first_pass, start_ns, start_ns
        )

    def _record_pass(
        self,
        iterator: Any,
        loader: LoaderState,
        earlier_passes: int,
        first_pass: int | None,
        start_ns: int,
        stop_ns: int,
    ) -> PassState:
        """Record the beginning of a pass over the iterator, and return the state of the pass.

        first_pass: as in PassState; None: the number of this pass. start_ns, stop_ns: start and end
        of the start-up.
        """
        loader.asked_ns = 0
        number = next(PASS_NUMBERS)
        state = PassState(
            number=number,
            loader=loader,
            begun_ns=now_ns(),
            place=place_of_pass(),
            earlier_passes=earlier_passes,
            first_pass=number if first_pass is None else first_pass,
            second_batch_at=iterator._num_yielded + 1,
            usage=PassUsage(self.log, "steps"),
        )
        setattr(iterator, STATE, state)
        pids = [worker.pid for worker in getattr(iterator, "_workers", ())]
        if pids:
            MEMORY_TURNS.end_turn()
        self.log.add_fact(
            pass_number=number,
            loader=loader.number,
            earlier_passes=earlier_passes,
            first_pass=state.first_pass,
            pids=pids,
            place=state.place,
        )
        self.log.here().add(Part.START, start_ns, stop_ns, 0, number)
        return state
