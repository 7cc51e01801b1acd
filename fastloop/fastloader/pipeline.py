"""Batches of an epoch made in Python: a list of stages, done by threads and by the loop.

Threads do all stages of a group of batches ahead of the loop, which receives them. If samples or
transforms draw from global generators, which threads would have to share, the loop does the stages
that draw. What a sample or a transform draws depends on no thread, see sample_draws.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fastloop.core.torch_threads import one_torch_thread
from fastloop.fastloader.batching import Groups
from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.device_copy import DeviceCopies
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.process_reading import ProcessBatches
from fastloop.fastloader.running_epoch import Running
from fastloop.fastloader.sample_draws import draw_globally, draw_privately, find_global_draws
from fastloop.fastloader.stages import (
    ApplyTransform,
    Batches,
    CopyToDevice,
    DividedGather,
    Gather,
    GatherRows,
    Group,
    ReceiveCopies,
    SplitRows,
    Stage,
    StagedGroup,
    Transform,
    pass_stages,
    pin,
)
from fastloop.fastloader.thread_map import Part, map_ahead, map_parts_ahead
from fastloop.fastloader.tuning import Tuning

Results = Generator[StagedGroup, None, None]


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
        num_threads = self.tuning.num_threads
        # Columns have seeds of their own, and processes draw there.
        draws = transform is not None or not isinstance(source, ColumnSource | ProcessBatches)
        if isinstance(source, ColumnSource):
            is_on_cuda = self.target is not None and self.target.type == "cuda"
            # A copy to a GPU runs beside the loop only from pinned memory.
            source = replace(source, is_pinned=self.pins or is_on_cuda)
            if source.shows_views and not source.is_slow and not draws:
                # A view costs nothing: there is nothing to make ahead.
                num_threads = 0
        copies = None if self.target is None else DeviceCopies(self.target)
        stages, receiving = self._list_stages(source, transform, copies, draws=draws)
        work = Work(
            stages,
            num_threads,
            self.tuning.prefetch_factor,
            nullcontext if copies is None else copies.on_stream,
            self.draws if draws else None,
            self.in_order,
        )
        if isinstance(source, ColumnSource) and source.is_slow and num_threads > 1:
            results = work.divide(source, groups)
        else:
            results = work.map(groups)
        end = source.end if isinstance(source, ProcessBatches) else _end_nothing
        return Running(results, partial(_receive, receiving), end)

    def _list_stages(
        self,
        source: Batches,
        transform: Transform | None,
        copies: DeviceCopies | None,
        *,
        draws: bool,
    ) -> tuple[Sequence[Stage], Sequence[Stage]]:
        """The stages that threads may do, and those that the loop's thread does."""
        ahead: list[Stage] = [Gather(source)]
        receiving: list[Stage] = [] if copies is None else [ReceiveCopies(copies)]
        if copies and isinstance(source, ColumnSource) and not source.is_slow and not draws:
            # The rows of a group's batches are copied to the device at once, and split there.
            # Batches of images are copied one by one, as one of them may fail.
            ahead = [GatherRows(source)]
            receiving.append(SplitRows(source))
        if transform is not None:
            ahead.append(ApplyTransform(transform, may_end=isinstance(source, StreamBatches)))
        if self.pins:
            ahead.append(pin)
        if copies is not None:
            ahead.append(CopyToDevice(copies))
        return ahead, receiving


@dataclass(frozen=True)
class Work:
    """The stages of an epoch's groups, and the threads that do them ahead of the loop."""

    stages: Sequence[Stage]
    num_threads: int
    ahead: int
    """Groups that each thread makes ahead."""
    on_stream: Callable[[], AbstractContextManager[Any]]
    """The context in which a thread copies to a device."""
    draws: GlobalDraws | None
    """None: nothing is drawn in these stages."""
    in_order: bool
    """False: groups come as they get ready."""

    def map(self, groups: Groups) -> Results:
        """All stages of each group, of which a thread makes one at a time."""
        if self.draws is None:
            return self._map(self._finish, groups, self.num_threads)
        if not self.num_threads or self.draws.names:
            return self._map(self._finish_globally, groups, 0)
        if self.draws.names is None:
            return self._find_and_map(groups)
        return self._map(self._finish_privately, groups, self.num_threads)

    def _map(
        self, finish: Callable[[StagedGroup], StagedGroup], groups: Groups, num_threads: int
    ) -> Results:
        def make(group: Group) -> StagedGroup:
            return finish(StagedGroup(group))

        return map_ahead(make, groups, num_threads, self.ahead, in_order=self.in_order)

    def _find_and_map(self, groups: Groups) -> Results:
        """The loop's thread makes the loader's first group, to find which generators it uses."""
        for group in groups:
            first = self._finish_and_find(StagedGroup(group))
            rest = self.map(groups)
            with closing(rest):
                yield first
                # Otherwise this frame would hold them while the threads make others.
                del first, group
                yield from rest
            return

    def divide(self, source: ColumnSource, groups: Groups) -> Results:
        """All stages of each group of slow columns, of which each thread makes a part.

        Columns have seeds of their own: threads gather also if the loop does the other stages.
        """

        def divide(group: Group) -> list[Part]:
            return DividedGather(source, group, self._go_on).divide(self.num_threads)

        num_threads, in_order = self.num_threads, self.in_order
        results = map_parts_ahead(divide, groups, num_threads, self.ahead, in_order=in_order)
        return results if self.draws is None else self._go_on_in_loop(results)

    def _go_on(self, gathered: StagedGroup) -> StagedGroup:
        """Go on with a group in the thread that has gathered its last part."""
        if self.draws is None:
            return self._finish(gathered)
        # Threads would share generators, or it is not known yet if they would.
        if self.draws.names is None or self.draws.names:
            return gathered
        return self._finish_privately(gathered)

    def _go_on_in_loop(self, results: Results) -> Results:
        with closing(results):
            for staged in map(self._finish_in_loop, results):
                yield staged
                # Otherwise this frame would hold the batches while it waits for the next.
                del staged

    def _finish_in_loop(self, staged: StagedGroup) -> StagedGroup:
        """Do the stages that a thread has left to the loop."""
        assert self.draws is not None
        if staged.num_done == len(self.stages):
            return staged
        is_first = self.draws.names is None
        return self._finish_and_find(staged) if is_first else self._finish_globally(staged)

    def _finish(self, staged: StagedGroup) -> StagedGroup:
        """Do the stages that the group has not passed."""
        # OpenMP's threads wait for each other, and one busy core holds up all of them.
        single = one_torch_thread() if self.num_threads else nullcontext()
        with single, self.on_stream():
            return pass_stages(staged, self.stages)

    def _finish_privately(self, staged: StagedGroup) -> StagedGroup:
        with draw_privately():
            return self._finish(staged)

    def _finish_globally(self, staged: StagedGroup) -> StagedGroup:
        with draw_globally():
            return self._finish(staged)

    def _finish_and_find(self, staged: StagedGroup) -> StagedGroup:
        found: set[str] = set()
        with find_global_draws(found):
            finished = self._finish(staged)
        assert self.draws is not None
        self.draws.names = found
        _warn(found)
        return finished


def _receive(receiving: Sequence[Stage], staged: StagedGroup) -> Any:
    """The batches of a group, after the stages of the loop's thread."""
    return pass_stages(StagedGroup(staged.group, 0, staged.made), receiving).made


def _end_nothing() -> None:
    return


def _warn(found: set[str]) -> None:
    if found:
        names = " and ".join(sorted(found))
        problem = f"samples are drawn from the global generators of {names}, which threads share"
        advice = "seed a generator with fastloop.sample_seed() to have them read ahead"
        warnings.warn(f"{problem}: they are read in the loop itself; {advice}", stacklevel=5)
