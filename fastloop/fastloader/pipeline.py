"""Batches of an epoch made in Python: by threads or the consumer, with a transform, on a device.

Random draws of the samples and of the transform depend on no thread, see map_seeded.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.torch_threads import one_torch_thread
from fastloop.fastloader.batching import Groups
from fastloop.fastloader.column_source import ColumnSource, is_slow
from fastloop.fastloader.columns.column import Column, Tree
from fastloop.fastloader.dataset_source import BatchSource
from fastloop.fastloader.device_copy import Copied, DeviceCopies
from fastloop.fastloader.failed_batch import FailedBatch, refuse_stop, try_batch
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.process_reading import ProcessBatches
from fastloop.fastloader.sample_draws import draw_globally, draw_privately, find_global_draws
from fastloop.fastloader.thread_map import map_ahead
from fastloop.fastloader.tuning import Tuning

Group = Sequence[np.ndarray]
Make = Callable[[Group], Any]
Batches = BatchSource | StreamBatches | ProcessBatches
Transform = Callable[[Tree, list[int]], Tree]
"""(batch, indices of its samples) -> the delivered batch."""


@dataclass
class GlobalDraws:
    """The global generators that a loader's samples and transforms draw from."""

    names: set[str] | None = None
    """Owners of the generators that threads would have to share, see find_global_draws; None: not
    known yet."""


@dataclass(frozen=True)
class Pipeline:
    """The steps from groups of indices to batches, of all epochs of a loader."""

    tuning: Tuning
    target: torch.device | None
    """The device of the delivered batches; None: the CPU."""
    pins: bool
    """True: they are delivered in pinned memory of the CPU."""
    in_order: bool = True
    """False: batches that several threads or processes make are delivered as they get ready."""
    draws: GlobalDraws = field(default_factory=GlobalDraws)

    @property
    def is_plain(self) -> bool:
        """True if batches are delivered in ordinary memory of the CPU."""
        return self.target is None and not self.pins

    def copy(self) -> Pipeline:
        """A pipeline for another process, or for another loader."""
        return replace(self, draws=replace(self.draws))

    def start(self, source: Batches, groups: Groups, transform: Transform | None) -> Running:
        """Start the threads, if any, that make the batches of each group."""
        num_threads, receive = self.tuning.num_threads, _as_it_is
        is_seeded = transform is not None or not isinstance(source, ColumnSource | ProcessBatches)
        if isinstance(source, ColumnSource):
            is_on_cuda = self.target is not None and self.target.type == "cuda"
            # A copy to a GPU runs beside the loop only from pinned memory.
            source = _divide(replace(source, is_pinned=self.pins or is_on_cuda), num_threads)
            if source.shows_views and not is_seeded:
                # A view costs nothing: there is nothing to make ahead.
                num_threads = 0
        make = partial(_make_batches, source, transform)
        if self.pins:
            make = partial(_pin, make)
        if self.target is not None:
            copies = DeviceCopies(self.target)
            receive = copies.receive
            # The rows of a group's batches are copied to the device at once, and divided there.
            # Batches of images are copied one by one, as one of them may fail.
            if not is_seeded and isinstance(source, ColumnSource) and not source.is_slow:
                make, receive = source.gather, partial(_split_copied, source, copies)
            make = partial(copies.make, make)
        end = source.end if isinstance(source, ProcessBatches) else _end_nothing
        return Running(self._map(make, groups, num_threads, is_seeded), receive, end)

    def _map(
        self, make: Make, groups: Groups, num_threads: int, is_seeded: bool
    ) -> Generator[Any, None, None]:
        if num_threads:
            # OpenMP's threads wait for each other, and one busy core holds up all of them.
            make = partial(_in_one_torch_thread, make)
        ahead, in_order = self.tuning.prefetch_factor, self.in_order
        if is_seeded:
            return map_seeded(make, groups, num_threads, ahead, self.draws, in_order=in_order)
        return map_ahead(make, groups, num_threads, ahead, in_order=in_order)


class SharedBatches:
    """The batches of an epoch, which several threads may ask for at the same time.

    The error of a FailedBatch is raised in its turn.
    """

    def __init__(self, batches: Generator[Tree | FailedBatch, None, None]) -> None:
        # A generator that is asked while it runs raises ValueError. The lock is reentrant, as the
        # collector may close the epoch in the thread that holds it.
        self._batches, self._lock = batches, RLock()

    def __iter__(self) -> SharedBatches:
        return self

    def __next__(self) -> Tree:
        with self._lock:
            batch = next(self._batches)
        if not isinstance(batch, FailedBatch):
            return batch
        error = batch.error
        del self, batch  # or the error's traceback would keep the epoch, and its threads, alive
        try:
            raise error
        finally:
            del error

    def close(self) -> None:
        """End the epoch."""
        self._batches.close()


@dataclass(frozen=True)
class Running:
    """An epoch with threads that have started."""

    results: Generator[Any, None, None]
    receive: Callable[[Any], Sequence[Tree]]
    """result -> the group's batches; called in the loop's thread."""
    end: Callable[[], None]
    """Called when the threads have ended; ends processes."""

    def deliver(
        self,
        state: dict[str, Any],
        finish: Callable[[], None],
        draw_for: Callable[[int], None] | None = None,
    ) -> Iterator[Tree]:
        """The batches, each counted in the state; closing this ends the threads.

        One that has failed is counted when the next one is asked for: a program that ends with the
        error is resumed with that batch.

        finish: called after the last one. draw_for: called before each batch is delivered, with its
        number, from 1 on. A fork of this process gets a RuntimeError: it has none of the threads,
        and a lock of theirs may have been held when it was made.
        """
        return SharedBatches(self._deliver(state, finish, draw_for, os.getpid()))

    def _deliver(
        self,
        state: dict[str, Any],
        finish: Callable[[], None],
        draw_for: Callable[[int], None] | None,
        pid: int,
    ) -> Generator[Tree | FailedBatch, None, None]:
        first = state["delivered"]
        try:
            _refuse_fork(pid)
            for result in self.results:
                batch, batches = None, self.receive(result)
                del result
                if not batches:
                    # A group without batches is an iterable's end.
                    break
                for batch in batches:
                    has_failed = isinstance(batch, FailedBatch)
                    state["delivered"] += not has_failed
                    if draw_for is not None:
                        draw_for(state["delivered"] + has_failed - first)
                    yield batch
                    # Asked again after each batch: the fork may have been made while the loop had
                    # it.
                    _refuse_fork(pid)
                    state["delivered"] += has_failed
                # Otherwise this frame would hold the last batch while the next ones are made.
                del batches, batch
            finish()
        finally:
            self.results.close()
            self.end()


def _refuse_fork(pid: int) -> None:
    if os.getpid() != pid:
        problem = f"process {pid} has begun this epoch of FastLoader, and {os.getpid()} is its fork"
        raise RuntimeError(f"{problem}: iterate over the loader anew in the fork")


def _end_nothing() -> None:
    return


def _as_it_is(batches: Sequence[Tree]) -> Sequence[Tree]:
    return batches


def _split_copied(source: ColumnSource, copies: DeviceCopies, copied: Copied) -> Sequence[Tree]:
    return source.split(copies.receive(copied), copied[0])


def _in_one_torch_thread(make: Callable[..., Any], *arguments: Any) -> Any:
    with one_torch_thread():
        return make(*arguments)


def _make_batches(
    source: Batches, transform: Transform | None, group: Group
) -> Sequence[Tree | FailedBatch]:
    if isinstance(source, ColumnSource):
        batches = _read_columns(source, group)
    elif isinstance(source, ProcessBatches):
        # If any order will do, these are the batches of other indices.
        batches, group = source.take(len(group))
    else:
        batches = source.batches(group)
    if transform is None:
        return batches
    may_have_ended = isinstance(source, StreamBatches)
    pairs = zip(batches, group, strict=not may_have_ended)
    return [try_batch(_apply, transform, batch, indices.tolist()) for batch, indices in pairs]


def _read_columns(source: ColumnSource, group: Group) -> Sequence[Tree | FailedBatch]:
    """The batches of a group: all at once, and one by one if one of them fails."""
    batches = try_batch(source.batches, group)
    if not isinstance(batches, FailedBatch):
        return batches
    if len(group) == 1:
        return [batches]
    return [batch for indices in group for batch in _read_columns(source, [indices])]


def _apply(transform: Transform, batch: Tree, indices: list[int]) -> Tree:
    if isinstance(batch, FailedBatch):
        return batch
    try:
        return transform(batch, indices)
    except StopIteration as error:
        raise refuse_stop("the transform", indices) from error


def _pin(make: Make, group: Group) -> Sequence[Tree]:
    def pin(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_pinned() else tensor.pin_memory()

    return [pytree.tree_map_only(torch.Tensor, pin, batch) for batch in make(group)]


def _divide(source: ColumnSource, num_threads: int) -> ColumnSource:
    """The source with each batch of its slow columns divided among threads.

    The first batch is then ready as soon as all threads together can make it, and each batch is
    finished before later ones.
    """
    if num_threads < 2 or not source.is_slow:
        return source
    # Its threads end when nobody refers to it any more.
    executor = ThreadPoolExecutor(num_threads)
    return replace(source, fill=partial(_fill_together, executor, num_threads))


def _fill_together(
    executor: ThreadPoolExecutor,
    num_parts: int,
    column: Column,
    indices: np.ndarray,
    out: np.ndarray,
) -> None:
    if not is_slow(column):
        column.fill(indices, out)
        return
    step = max(1, -(-len(indices) // num_parts))
    parts = [slice(start, start + step) for start in range(0, len(indices), step)]
    fill = partial(_in_one_torch_thread, column.fill)
    for future in [executor.submit(fill, indices[part], out[part]) for part in parts]:
        future.result()


def map_seeded(
    make: Make,
    items: Iterable[Any],
    num_threads: int,
    ahead: int,
    draws: GlobalDraws,
    *,
    in_order: bool = True,
) -> Generator[Any, None, None]:
    """make(item) for each item, in order unless any will do, by threads unless these would have to
    share a generator.

    The loop's thread makes a loader's first item, to find out.
    """
    if num_threads and draws.names is None:
        return _find_and_map(make, iter(items), num_threads, ahead, draws, in_order=in_order)
    if num_threads and not draws.names:
        by_thread = partial(_make_privately, make)
        return map_ahead(by_thread, items, num_threads, ahead, in_order=in_order)
    return map_ahead(lambda item: _make_globally(make, item), items, 0, ahead)


def _find_and_map(
    make: Make,
    items: Iterator[Any],
    num_threads: int,
    ahead: int,
    draws: GlobalDraws,
    *,
    in_order: bool,
) -> Generator[Any, None, None]:
    found: set[str] = set()
    for item in items:
        with find_global_draws(found):
            result = make(item)
        draws.names = found
        _warn(found)
        rest = map_seeded(make, items, num_threads, ahead, draws, in_order=in_order)
        try:
            yield result
            # Otherwise this frame would hold them while the threads make others.
            del result, item
            yield from rest
        finally:
            rest.close()
        return


def _warn(found: set[str]) -> None:
    if found:
        names = " and ".join(sorted(found))
        problem = f"samples are drawn from the global generators of {names}, which threads share"
        advice = "seed a generator with fastloop.sample_seed() to have them read ahead"
        warnings.warn(f"{problem}: they are read in the loop itself; {advice}", stacklevel=4)


def _make_privately(make: Make, item: Any) -> Any:
    with draw_privately():
        return make(item)


def _make_globally(make: Make, item: Any) -> Any:
    with draw_globally():
        return make(item)
