"""Make the batches of an epoch in Python by stages: gather, transform, pin, copy to a device.

Batches that are made together form a group. Threads pass a group through all stages ahead of the
loop. To draw is to take random numbers from a generator. `Work` has the stages of an epoch that
draws nothing, and `DrawingWork` those of an epoch with samples or transforms that draw. A sample
draws the same numbers in any thread, except for draws on a GPU, see private_draws.py.
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
from fastloop.fastloader.global_draws import GlobalDraws, draw_globally
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.loader_tuning import Tuning
from fastloop.fastloader.loop_or_threads import LoopOrThreads
from fastloop.fastloader.private_draws import draw_privately
from fastloop.fastloader.process_batches import ProcessBatches
from fastloop.fastloader.reader_turns import ReaderTurns
from fastloop.fastloader.running_epoch import Running
from fastloop.fastloader.thread_map import Part, map_ahead, map_parts_ahead
from fastloop.fastloader.thread_modes import ThreadModes, read_modes


@dataclass(frozen=True)
class Pipeline:
    """The steps from groups of indices to batches, for all epochs of a loader."""

    tuning: Tuning
    """The number of threads, and of groups that each thread makes ahead."""
    target: torch.device | None
    """The device of the delivered batches; None: the CPU."""
    pins: bool
    """True: batches are delivered in pinned memory of the CPU."""
    in_order: bool = True
    """False: batches of several threads or processes are delivered as soon as they are ready."""
    draws: GlobalDraws = field(default_factory=GlobalDraws)
    """The global generators from which samples and transforms have drawn so far."""
    choice: LoopOrThreads = field(default_factory=LoopOrThreads)
    """The choice between the loop and threads, based on the times of the batches so far."""
    usual: UsualSize = field(default_factory=UsualSize)
    """The usual size of a batch, based on the batches so far."""

    @property
    def is_plain(self) -> bool:
        """True if batches are delivered in ordinary memory of the CPU."""
        return self.target is None and not self.pins

    def copy(self) -> Pipeline:
        """A copy for another process or another loader, with findings of its own from now on."""
        draws = self.draws.copy()
        return replace(self, draws=draws, choice=replace(self.choice), usual=replace(self.usual))

    def start(self, source: Batches, groups: Groups, transform: Transform | None) -> Running:
        """Start an epoch, and the threads that make its batches, if there are any.

        If the loop makes the first batches, the threads start after these batches.

        source: makes batches. groups: the indices of the batches, in groups. transform: applied to
        each batch; None: no transform.
        """
        modes = read_modes()
        # Only the loop's thread can have other modes, such as a mode of the user's own.
        num_threads = 0 if modes.has_others else self.tuning.num_threads
        # Columns draw with seeds of their own, and processes draw from generators of their own. So
        # only transforms and other sources may draw from this process's generators.
        has_draws = transform is not None or not isinstance(source, ColumnSource | ProcessBatches)
        if isinstance(source, ColumnSource):
            is_on_cuda = self.target is not None and self.target.type == "cuda"
            # Only copies from pinned memory run on a GPU while the loop goes on.
            source = replace(source, is_pinned=self.pins or is_on_cuda)
            if source.shows_views and not source.is_slow and not has_draws:
                # Batches are views, which cost nothing, so nothing is made ahead.
                num_threads = 0
        copies = None if self.target is None else DeviceCopies(self.target)
        stages, receiving = self._list_stages(source, transform, copies, has_draws=has_draws)
        work = Work(
            stages=stages,
            tuning=replace(self.tuning, num_threads=num_threads),
            on_stream=nullcontext if copies is None else copies.on_stream,
            in_order=self.in_order,
            modes=modes,
            usual=self.usual if self.tuning.is_bounded else None,
        )
        if has_draws:
            work = DrawingWork(
                work=work,
                draws=self._draws_in(modes),
                is_repeatable=isinstance(source, ColumnSource | DatasetSource),
                choice=self.choice if self.tuning.is_adaptive else None,
                repeats_failed=isinstance(source, DatasetSource) and not source.is_thread_safe,
            )
        numbered = NumberedGroups(groups)
        if isinstance(source, ColumnSource) and source.is_slow and num_threads > 1:
            results = work.divide(source, numbered)
        else:
            results = work.map(numbered)
        end = source.end if isinstance(source, ProcessBatches) else lambda: None
        return Running(results, partial(_receive, receiving), end)

    def _draws_in(self, modes: ThreadModes) -> GlobalDraws:
        """The generators of an epoch in these modes, to which the epoch adds its findings."""
        # With other modes an epoch has no threads, and may miss a generator that threads would have
        # to share. Later epochs may have threads, so this epoch adds its findings to a copy.
        return self.draws.copy() if modes.has_others else self.draws

    def _list_stages(
        self,
        source: Batches,
        transform: Transform | None,
        copies: DeviceCopies | None,
        *,
        has_draws: bool,
    ) -> tuple[Sequence[Stage], Sequence[Stage]]:
        """The stages that threads may do, and the stages that the loop's thread does afterwards.

        copies: copies batches to the device; None: batches stay on the CPU. has_draws: True if a
        stage may draw from global generators.
        """
        ahead: list[Stage] = [Gather(source)]
        receiving: list[Stage] = [] if copies is None else [ReceiveCopies(copies)]
        if copies and isinstance(source, ColumnSource) and not source.is_slow and not has_draws:
            # The rows of all batches of a group are copied to the device together, and split into
            # batches there. Batches of slow columns, such as images, are copied one by one, because
            # one of them may fail.
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
    """The stages of an epoch's groups, and the threads that do these stages ahead of the loop.

    `map` and `divide` do stages that draw nothing. Stages that draw are done by DrawingWork.
    """

    stages: Sequence[Stage]
    """The stages that threads may do, in order."""
    tuning: Tuning
    """The number of threads, and of groups that each thread makes ahead."""
    on_stream: Callable[[], AbstractContextManager[Any]]
    """Returns the context in which a thread copies to a device."""
    in_order: bool
    """False: groups are delivered as soon as they are ready."""
    modes: ThreadModes
    """The modes of torch, such as no_grad, in the thread that begins the epoch."""
    usual: UsualSize | None
    """The usual size of a batch, by which `map` limits the bytes of batches made ahead. None: only
    the number of batches is limited, as `divide` always does."""

    def map(self, groups: Iterator[StagedGroup]) -> Results:
        """Each group after all stages; a thread makes one group at a time."""
        num_threads = self.tuning.num_threads
        finish = self.finish_in_thread if num_threads else self.finish_in_loop
        return self.map_by(finish, groups, num_threads)

    def divide(self, source: ColumnSource, groups: Iterator[StagedGroup]) -> Results:
        """Each group of slow columns after all stages; each thread makes a part of the group."""
        return self.divide_by(self.finish_in_thread, source, groups)

    def map_by(self, finish: Stage, groups: Iterator[StagedGroup], num_threads: int) -> Results:
        """finish(group) for each group, by this many threads; 0: by the loop's thread."""
        ahead = self.tuning.prefetch_factor
        limit = None
        if num_threads and self.usual is not None:
            # Each thread of the tuning may make one batch even if the bytes exceed the limit.
            limit = BytesAhead(max(1, self.tuning.num_threads), self.usual)
        return map_ahead(finish, groups, num_threads, ahead, in_order=self.in_order, limit=limit)

    def divide_by(
        self, go_on: Stage, source: ColumnSource, groups: Iterator[StagedGroup]
    ) -> Results:
        """go_on(gathered group) for each group; each thread gathers a part of the group.

        The thread that gathers the last part calls `go_on`.
        """
        num_threads = self.tuning.num_threads

        def divide(group: StagedGroup) -> list[Part]:
            return DividedGather(source, group, go_on).divide(num_threads)

        ahead = self.tuning.prefetch_factor
        return map_parts_ahead(divide, groups, num_threads, ahead, in_order=self.in_order)

    def finish_in_loop(self, staged: StagedGroup) -> StagedGroup:
        """The group after its other stages, done by the loop's thread in its present modes."""
        with self.on_stream():
            return pass_stages(staged, self.stages)

    def finish_in_thread(
        self,
        staged: StagedGroup,
        draw: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> StagedGroup:
        """The group after its other stages, done by any thread in the modes of the epoch's threads.

        draw: returns a context in which the stages draw.
        """
        # torch uses a single thread here. Several threads of OpenMP would wait for each other, so
        # that one busy core would delay all of them.
        with one_torch_thread(), self.modes.apply(), self.on_stream(), draw():
            return pass_stages(staged, self.stages)


@dataclass(frozen=True, kw_only=True)
class DrawingWork:
    """The work of an epoch with stages that draw from global generators.

    The loop makes the loader's first group, to find these generators. After that, threads do the
    stages and draw from generators of their own. If threads would have to share generators, the
    loop does the stages that draw.
    """

    work: Work
    draws: GlobalDraws
    """The global generators from which the stages draw."""
    is_repeatable: bool
    """True if a group can be read twice. A group of an iterable can't."""
    choice: LoopOrThreads | None
    """The choice of the number of threads, and of the moment at which they begin. None: all threads
    begin at once."""
    repeats_failed: bool
    """True: the loop's thread reads a batch again that another thread has failed to read. Some
    samples can be read only in the loop's thread."""

    def map(self, groups: Iterator[StagedGroup]) -> Results:
        """Each group after all stages; a thread makes one group at a time."""
        num_threads = self.work.tuning.num_threads
        choice = self.choice
        if self.draws.shared is None:
            return self._find_and_map(groups)
        if not num_threads or self.draws.shared:
            return self.work.map_by(self._finish_globally, groups, 0)
        if choice is None:
            return self._map_by_threads(num_threads, groups)
        # The loop has proven faster.
        if choice.is_decided and not choice.num_threads:
            return self.work.map_by(self._finish_globally, groups, 0)
        # Threads that have proven faster still run by turns, because a thread may fail.
        turns = ReaderTurns(
            choice=choice,
            tuning=self.work.tuning,
            draws=self.draws,
            make_in_loop=partial(self._seed_and_finish, self.work.finish_in_loop),
            map_by_threads=self._map_by_threads,
            repeats_failed=self.repeats_failed,
        )
        return turns.map(groups)

    def _find_and_map(self, groups: Iterator[StagedGroup]) -> Results:
        """Yield all groups; the loop makes the first one to find the generators that it uses."""
        for group in groups:
            first = self._finish_and_find(group)
            rest = self.map(groups)
            with closing(rest):
                yield first
                # Otherwise this frame would hold the first batches during the rest of the epoch.
                del first, group
                yield from rest
            return

    def _map_by_threads(self, num_threads: int, groups: Iterator[StagedGroup]) -> Results:
        """Each group after all stages, which at most `num_threads` threads do."""
        # If a sampler must not be read far ahead, an epoch may have fewer threads than others.
        num_threads = min(num_threads, self.work.tuning.most_threads)
        return self.work.map_by(self._finish_privately, groups, num_threads)

    def divide(self, source: ColumnSource, groups: Iterator[StagedGroup]) -> Results:
        """Each group of slow columns after all stages; each thread makes a part of the group.

        Columns draw with seeds of their own. So threads gather the rows even if other stages draw
        from global generators. The loop then does the other stages.
        """
        results = self.work.divide_by(self._finish_if_private, source, groups)
        return self._finish_gathered(results)

    def _finish_if_private(self, gathered: StagedGroup) -> StagedGroup:
        """The group after its other stages, if threads can draw from generators of their own."""
        # None: the first group has yet to show from which generators the stages draw.
        if self.draws.shared is None or self.draws.shared:
            return gathered
        return self._finish_privately(gathered)

    def _finish_gathered(self, results: Results) -> Results:
        """Yield each group after the stages that threads have left to the loop."""
        with closing(results):
            for staged in map(self._finish_left, results):
                yield staged
                # Otherwise this frame would hold the batches while it waits for the next ones.
                del staged

    def _finish_left(self, staged: StagedGroup) -> StagedGroup:
        """The group after the stages that a thread has left to the loop, if any."""
        if staged.num_done == len(self.work.stages):
            return staged
        if self.draws.shared is None:
            return self._finish_and_find(staged)
        # GlobalDraws.make_seeded might repeat the stages. But gathered batches can't be used twice,
        # because a transform may change them in place.
        with draw_globally():
            return self._finish_here(staged)

    def _finish_and_find(self, staged: StagedGroup) -> StagedGroup:
        """The group after its other stages; `draws` notes the generators from which these draw."""
        has_threads = bool(self.work.tuning.num_threads)
        with self.draws.find(for_threads=has_threads):
            finished = self._finish_here(staged)
        if has_threads and self.draws.shared:
            _warn(self.draws.shared)
        return finished

    def _finish_globally(self, staged: StagedGroup) -> StagedGroup:
        """The group after all stages, done by the loop's thread with seeded generators."""
        return self._seed_and_finish(self._finish_here, staged)

    def _finish_privately(self, staged: StagedGroup) -> StagedGroup:
        """The group after its other stages, which draw from a generator of the thread."""
        return self.work.finish_in_thread(staged, draw_privately)

    def _seed_and_finish(self, finish: Stage, staged: StagedGroup) -> StagedGroup:
        """finish(staged) with seeded generators, in the loop's thread."""
        draws = self.draws
        make_seeded = draws.make_seeded if self.is_repeatable else draws.make_seeded_once
        return make_seeded(partial(finish, staged))

    def _finish_here(self, staged: StagedGroup) -> StagedGroup:
        """The group after its other stages, done by the loop's thread in place of a thread."""
        work = self.work
        if not work.tuning.num_threads:
            return work.finish_in_loop(staged)
        # The last digits of long sums depend on the number of torch's own threads. If the user has
        # asked for threads, all batches are made alike, with one of torch's threads.
        if self.choice is None:
            return work.finish_in_thread(staged)
        # The loop may ask for a batch in other modes than those of the threads.
        with work.modes.apply():
            return work.finish_in_loop(staged)


def _receive(receiving: Sequence[Stage], staged: StagedGroup) -> Any:
    """The batches of a group after `receiving`, the stages that only the loop's thread does."""
    # These stages are a list of their own, so the number of passed stages starts at 0 again.
    return pass_stages(StagedGroup(staged.group, staged.number, 0, staged.made), receiving).made


def _warn(shared: set[str]) -> None:
    """Warn that the loop reads all samples, as threads would have to share these generators."""
    names = " and ".join(sorted(shared))
    problem = f"samples use the global random generators of {names}, which threads share"
    advice = "to read ahead, seed a generator of your own with fastloop.sample_seed()"
    result = "samples are read in the loop, not ahead"
    warnings.warn(f"{problem}: {result}; {advice}", stacklevel=5)
