"""Pipeline, which makes the batches of an epoch in Python by stages: gather, transform, pin, copy.

Batches that are made together form a group. Threads do all stages of a group ahead of the loop,
which receives its batches. If samples or transforms draw from global generators, which threads
would have to share, the loop does the stages that draw. The numbers that a sample or a transform
draws do not depend on the thread, unless they are drawn on a GPU, see sample_draws.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from fastloop.core.torch_threads import one_torch_thread
from fastloop.fastloader.batch_stages import (
    ApplyTransform,
    Batches,
    CopyToDevice,
    DividedGather,
    Gather,
    GatherRows,
    NumberedGroups,
    ReceiveCopies,
    Results,
    SplitRows,
    Stage,
    StagedGroup,
    Transform,
    pass_stages,
    pin,
)
from fastloop.fastloader.batching import Groups
from fastloop.fastloader.bytes_ahead import BytesAhead, UsualSize
from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.dataset_source import DatasetSource
from fastloop.fastloader.device_copy import DeviceCopies
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.loader_tuning import Tuning
from fastloop.fastloader.loop_or_threads import LoopOrThreads
from fastloop.fastloader.process_batches import ProcessBatches
from fastloop.fastloader.reader_turns import ReaderTurns
from fastloop.fastloader.running_epoch import Running
from fastloop.fastloader.sample_draws import (
    GlobalDraws,
    draw_globally,
    draw_privately,
    find_global_draws,
    make_seeded,
    make_seeded_once,
)
from fastloop.fastloader.thread_map import Part, map_ahead, map_parts_ahead
from fastloop.fastloader.thread_modes import ThreadModes, read_modes


@dataclass(frozen=True)
class Pipeline:
    """The steps from groups of indices to batches, for all epochs of a loader."""

    tuning: Tuning
    target: torch.device | None
    """The device of the delivered batches; None: the CPU."""
    pins: bool
    """True: batches are delivered in pinned memory of the CPU."""
    in_order: bool = True
    """False: batches that several threads or processes make are delivered as they get ready."""
    draws: GlobalDraws = field(default_factory=GlobalDraws)
    """The global generators that samples and transforms have drawn from so far."""
    choice: LoopOrThreads = field(default_factory=LoopOrThreads)
    """The choice between the loop and threads, by the times of the batches so far."""
    usual: UsualSize = field(default_factory=UsualSize)
    """The size of the batches so far."""

    @property
    def is_plain(self) -> bool:
        """True if batches are delivered in ordinary memory of the CPU."""
        return self.target is None and not self.pins

    def copy(self) -> Pipeline:
        """A pipeline for another process, or for another loader."""
        draws = replace(self.draws, seeded={*self.draws.seeded})
        return replace(self, draws=draws, choice=replace(self.choice), usual=replace(self.usual))

    def start(self, source: Batches, groups: Groups, transform: Transform | None) -> Running:
        """Start the threads, if any, that make the batches of each group."""
        modes = read_modes()
        # The loop's thread alone has other modes.
        num_threads = 0 if modes.has_others else self.tuning.num_threads
        # Columns draw with seeds of their own, and processes draw from their own generators. Only
        # transforms and other sources may draw in the stages of this process.
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
            stages=stages,
            tuning=replace(self.tuning, num_threads=num_threads),
            on_stream=nullcontext if copies is None else copies.on_stream,
            draws=self._draws_in(modes) if draws else None,
            in_order=self.in_order,
            modes=modes,
            can_repeat=isinstance(source, ColumnSource | DatasetSource),
            repeats_failed=self._repeats_failed(source),
            choice=self.choice if self.tuning.is_adaptive else None,
            usual=self.usual if self.tuning.is_bounded else None,
        )
        numbered = NumberedGroups(groups)
        if isinstance(source, ColumnSource) and source.is_slow and num_threads > 1:
            results = work.divide(source, numbered)
        else:
            results = work.map(numbered)
        end = source.end if isinstance(source, ProcessBatches) else lambda: None
        return Running(results, partial(_receive, receiving), end)

    def _draws_in(self, modes: ThreadModes) -> GlobalDraws:
        # An epoch without threads may miss a generator that threads would have to share. Its
        # findings go to a copy, because later epochs may have threads.
        return replace(self.draws, seeded={*self.draws.seeded}) if modes.has_others else self.draws

    def _repeats_failed(self, source: Batches) -> bool:
        # The user has neither asked for a thread nor said that threads may read this Dataset.
        is_shared = not isinstance(source, DatasetSource) or source.is_thread_safe
        return self.tuning.is_adaptive and not is_shared

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


@dataclass(frozen=True, kw_only=True)
class Work:
    """The stages of an epoch's groups, and the threads that do them ahead of the loop."""

    stages: Sequence[Stage]
    tuning: Tuning
    """The number of threads, and of groups that each makes ahead."""
    on_stream: Callable[[], AbstractContextManager[Any]]
    """The context in which a thread copies to a device."""
    draws: GlobalDraws | None
    """The generators that these stages draw from; None: nothing is drawn in them."""
    in_order: bool
    """False: groups come as they get ready."""
    modes: ThreadModes
    """The modes of the thread that begins the epoch."""
    can_repeat: bool = False
    """True if a group can be read twice, which an iterable's can't."""
    repeats_failed: bool = False
    """True: if a thread fails to read a batch, the loop's thread reads it again, because some
    samples can be read in the loop's thread only."""
    choice: LoopOrThreads | None = None
    """The choice of the number of threads that make batches, and of the moment at which they begin;
    None: all threads begin at once."""
    usual: UsualSize | None = None
    """The size of the loader's batches so far, which limits how many are made ahead; None: their
    number alone does."""

    def map(self, groups: Iterator[StagedGroup]) -> Results:
        """All stages of each group; a thread makes one group at a time."""
        if self.draws is None:
            return self._map(self._finish, groups, self.tuning.num_threads)
        # The first group of the loader shows which generators the samples draw from.
        if self.draws.shared is None:
            return self._find_and_map(groups)
        num_threads = self.tuning.num_threads
        choice = self.choice
        # The loop makes all batches itself if there are no threads, or if they can't draw.
        if num_threads and choice is not None and not self.draws.shared:
            # A thread that has proven faster may still fail.
            if not choice.is_decided or choice.num_threads:
                return self._take_turns(choice, self.draws).map(groups)
            num_threads = 0
        if not num_threads or self.draws.shared:
            return self._map(self._finish_globally, groups, 0)
        return self._map_by_threads(num_threads, groups)

    def _take_turns(self, choice: LoopOrThreads, draws: GlobalDraws) -> ReaderTurns:
        """The turns of the loop and the threads, if these draw from generators of their own."""
        return ReaderTurns(
            choice=choice,
            tuning=self.tuning,
            draws=draws,
            make_in_loop=self._without_threads()._finish_globally,
            map_by_threads=self._map_by_threads,
            repeats_failed=self.repeats_failed,
        )

    def _map(self, finish: Stage, groups: Iterator[StagedGroup], num_threads: int) -> Results:
        ahead = self.tuning.prefetch_factor
        limit = None
        if num_threads and self.usual is not None:
            # The threads that were asked for, or that there are cores for, make a batch each.
            limit = BytesAhead(max(1, self.tuning.num_threads), self.usual)
        return map_ahead(finish, groups, num_threads, ahead, in_order=self.in_order, limit=limit)

    def _find_and_map(self, groups: Iterator[StagedGroup]) -> Results:
        """The loop's thread makes the loader's first group, to find which generators it uses."""
        for group in groups:
            first = self._finish_and_find(group)
            rest = self.map(groups)
            with closing(rest):
                yield first
                # Otherwise this frame would hold the batches while the threads make others.
                del first, group
                yield from rest
            return

    def _without_threads(self) -> Work:
        return replace(self, tuning=replace(self.tuning, num_threads=0, waiting_threads=0))

    def _map_by_threads(self, num_threads: int, groups: Iterator[StagedGroup]) -> Results:
        # A sampler that must not be read far ahead may allow fewer threads than other epochs had.
        num_threads = min(num_threads, self.tuning.most_threads)
        return self._map(self._finish_privately, groups, num_threads)

    def divide(self, source: ColumnSource, groups: Iterator[StagedGroup]) -> Results:
        """All stages of each group of slow columns; each thread makes a part of the group.

        Columns draw with seeds of their own, so threads gather them even if other stages draw from
        global generators and the loop has to do them.
        """

        def divide(group: StagedGroup) -> list[Part]:
            return DividedGather(source, group, self._go_on).divide(num_threads)

        num_threads = self.tuning.num_threads
        ahead = self.tuning.prefetch_factor
        results = map_parts_ahead(divide, groups, num_threads, ahead, in_order=self.in_order)
        return results if self.draws is None else self._go_on_in_loop(results)

    def _go_on(self, gathered: StagedGroup) -> StagedGroup:
        """Go on with a group in the thread that has gathered its last part."""
        if self.draws is None:
            return self._finish(gathered)
        # The loop does the other stages if threads would have to share generators, or if that is
        # not known yet.
        if self.draws.shared is None or self.draws.shared:
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
        is_first = self.draws.shared is None
        return self._finish_and_find(staged) if is_first else self._finish_globally(staged)

    def _finish(
        self,
        staged: StagedGroup,
        draw: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> StagedGroup:
        """Do the stages that the group has not passed. draw: the context in which it draws."""
        if not self.tuning.num_threads:
            return self._finish_here(staged)
        # OpenMP's threads wait for each other, and one busy core holds up all of them.
        with one_torch_thread(), self.modes.apply(), self.on_stream(), draw():
            return pass_stages(staged, self.stages)

    def _finish_here(self, staged: StagedGroup) -> StagedGroup:
        """Do the stages that the group has not passed, in the loop's thread."""
        has_threads = bool(self.tuning.num_threads)
        # The loop may ask for batches in other modes than those in which the threads make them.
        modes = self.modes.apply() if has_threads else nullcontext()
        # The last digits of long sums depend on the number of torch's own threads. If the user has
        # asked for threads, each of them uses one, and so does the loop: all batches are made
        # alike. Otherwise the loop makes batches as DataLoader does.
        threads = one_torch_thread() if has_threads and self.choice is None else nullcontext()
        with threads, modes, self.on_stream():
            return pass_stages(staged, self.stages)

    def _finish_privately(self, staged: StagedGroup) -> StagedGroup:
        return self._finish(staged, draw_privately)

    def _finish_globally(self, staged: StagedGroup) -> StagedGroup:
        assert self.draws is not None
        finish = partial(self._finish_here, staged)
        if not self.can_repeat:
            return make_seeded_once(finish, self.draws)
        # A transform may have changed batches in place that were gathered before.
        if staged.num_done:
            with draw_globally():
                return finish()
        return make_seeded(finish, self.draws)

    def _finish_and_find(self, staged: StagedGroup) -> StagedGroup:
        assert self.draws is not None
        with find_global_draws(self.draws, for_threads=bool(self.tuning.num_threads)):
            finished = self._finish_here(staged)
        if self.tuning.num_threads:
            _warn(self.draws.shared)
        return finished


def _receive(receiving: Sequence[Stage], staged: StagedGroup) -> Any:
    """The batches of a group, after the stages of the loop's thread."""
    # The stages of the loop's thread are a list of their own, so they are counted from 0 again.
    return pass_stages(StagedGroup(staged.group, staged.number, 0, staged.made), receiving).made


def _warn(found: set[str] | None) -> None:
    if found:
        names = " and ".join(sorted(found))
        problem = f"samples use the global random generators of {names}, which threads share"
        advice = "to read ahead, seed a generator of your own with fastloop.sample_seed()"
        result = "samples are read in the loop, not ahead"
        warnings.warn(f"{problem}: {result}; {advice}", stacklevel=5)
