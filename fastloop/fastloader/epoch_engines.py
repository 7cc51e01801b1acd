"""The engines that make a loader's batches, the native core and Python, and the choice of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from fastloop.fastloader.batching import Groups, group_batches
from fastloop.fastloader.checkpoint import State
from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_changes import DatasetWatch, watch_dataset
from fastloop.fastloader.dataset_source import BatchSource, prepare_source
from fastloop.fastloader.iterable_source import IterableSource, StreamBatches, number_batches
from fastloop.fastloader.large_files import may_read_directly, use_direct_reads
from fastloop.fastloader.loader_settings import WORKER_SETTINGS, LoaderSettings
from fastloop.fastloader.native_stream import (
    Delivery,
    MemoryPools,
    NativeColumns,
    NativeOrder,
    PieceTimes,
    StreamPlan,
    is_fed,
    open_columns,
    open_stream,
)
from fastloop.fastloader.open_source import count_samples, open_source
from fastloop.fastloader.order import EpochOrder, LoaderOrder, StreamOrder
from fastloop.fastloader.paced_samplers import PacedGroups, read_batches, without_sampler
from fastloop.fastloader.pipeline import Pipeline
from fastloop.fastloader.process_reading import ProcessReading, start_reading
from fastloop.fastloader.reading_choice import Tuning, choose_processes, slow_down, tune
from fastloop.fastloader.sample_draws import SampleDraws, seed_transform
from fastloop.fastloader.torch_draws import DrawMoments, EpochStart, choose_moments


@dataclass
class NativeSource:
    """The columns of a tree, as the core reads them, and caches reused between epochs: batch memory
    and idle threads."""

    columns: NativeColumns
    assemble: Callable[[tuple[torch.Tensor, ...]], Tree] | None
    """(a tensor of each column) -> batch; None: the only column's tensor is the batch."""
    pools: MemoryPools = field(default_factory=MemoryPools)
    times: PieceTimes | None = None
    """Times of the pieces of batches, if they are recorded."""


def open_natively(source: object) -> NativeSource | None:
    """The source's columns in the core; None if only Python can make its batches."""
    if not isinstance(source, ColumnSource):
        return None
    columns = open_columns(source.columns)
    return None if columns is None else NativeSource(columns, source.unflatten)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A loader's opened source, and the processes, threads and stages that read it in each epoch.

    It is kept until one of the settings of how the source is read is assigned to, or until a
    dataset that is read natively has been changed.
    """

    source: BatchSource | IterableSource
    watch: DatasetWatch | None
    """Tells whether the dataset was changed; None if that needs no watch."""
    native: NativeSource | None
    """The source's columns in the core; None: only Python can make its batches."""
    processes: ProcessReading | None
    """The processes that read a Dataset; None: threads do."""
    pipeline: Pipeline
    """The stages by which Python makes batches from groups of indices; it also has the number of
    threads, which the core uses too."""
    moments: DrawMoments
    is_unbatched: bool
    asks_for_lists: bool
    """These two are the settings with which the source was opened, see LoaderSettings."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle all fields except the source, which another process opens itself."""
        return self.__dict__ | {"source": None, "watch": None, "native": None}

    def copy(self) -> Reading:
        """A copy for another loader, or for one in another process."""
        return replace(self, pipeline=self.pipeline.copy())

    def reopen(self, settings: LoaderSettings) -> Reading:
        """Reopen the source, to be read in the same way."""
        source = open_source(settings)
        watch = watch_dataset(settings.source, source)
        return replace(self, source=source, watch=watch, native=open_natively(source))

    @property
    def num_samples(self) -> int | None:
        """The number of samples, as the source says now; None if an iterable does not say."""
        return count_samples(self.source) if self.watch is None else len(self.watch)

    def is_of(self, settings: LoaderSettings) -> bool:
        """True if these settings ask the source for batches, samples or lists, as this does, and it
        has as many samples as when it was opened."""
        asked = settings.is_unbatched, settings.asks_for_lists
        is_as_long = self.num_samples == count_samples(self.source)
        return asked == (self.is_unbatched, self.asks_for_lists) and is_as_long

    def settings_in_use(self, engine: NativeEpochs | PythonEpochs) -> Sequence[str]:
        """The settings of DataLoader's worker processes that have an effect."""
        if self.processes is not None:
            return (*WORKER_SETTINGS, "in_order")
        is_python = isinstance(engine, PythonEpochs) and not self.pipeline.in_order
        if is_python and self.pipeline.tuning.num_threads > 1:
            return ("in_order",)
        if isinstance(self.source, IterableSource) and self.source.workers is not None:
            # Its processes start with each epoch, and never persist.
            return [name for name in WORKER_SETTINGS if name != "persistent_workers"]
        return ()


def open_reading(settings: LoaderSettings) -> Reading:
    """Open a loader's source, and choose the processes, threads and device of its batches.

    Raises ValueError for settings that are invalid on this system, or with this source.
    """
    source = open_source(settings)
    native = open_natively(source)
    processes, target = choose_processes(settings, source), settings.target
    tuning = tune(
        settings,
        source,
        target,
        by_core=native is not None,
        by_processes=processes is not None,
    )
    # The end of an iterable is known only once all samples before it have come.
    in_order = settings.is_in_order or isinstance(source, IterableSource)
    pipeline = Pipeline(tuning, target, settings.pins, in_order)
    return Reading(
        source=source,
        watch=watch_dataset(settings.source, source),
        native=native,
        processes=processes,
        pipeline=pipeline,
        moments=choose_moments(settings),
        is_unbatched=settings.is_unbatched,
        asks_for_lists=settings.asks_for_lists,
    )


def choose_engine(
    settings: LoaderSettings, reading: Reading, order: EpochOrder
) -> NativeEpochs | PythonEpochs:
    """The engine of the batches of this order: the native core if it can make them, else Python.

    This is the only place that chooses.
    """
    native, is_plain = reading.native, reading.pipeline.is_plain
    shows_views = not settings.copy and order.is_sequential and is_plain
    is_batched = not settings.is_unbatched or settings.asks_for_lists
    python = PythonEpochs(reading, settings.transform, is_batched, shows_views)
    # A tree with columns that the core can't make, a Dataset, or an iterable.
    if native is None or not isinstance(order, LoaderOrder):
        return python
    # The core delivers rows as they are, in new memory of the CPU.
    if settings.transform is not None or not is_plain or shows_views:
        return python
    # The core asks for indices when it needs them, not when DataLoader would.
    if order.draws.is_paced:
        return python
    # Large files are read faster past the page cache if the order has long stretches of rows.
    if may_read_directly(reading.source, order.shuffle):
        return python
    plan = StreamPlan(
        columns=native.columns,
        batch_size=0 if order.batch_sampler is not None else order.batch_size or 1,
        drop_last=order.drop_last,
        num_threads=reading.pipeline.tuning.num_threads,
        ahead=settings.prefetch_factor,
        is_lazy=order.is_lazy,
    )
    return NativeEpochs(native, plan)


@dataclass(frozen=True)
class NativeEpochs:
    """The native core: its threads make the batches, and never run Python."""

    source: NativeSource
    plan: StreamPlan
    name: ClassVar[str] = "native"

    def record(self) -> PieceTimes | None:
        """Record the times of pieces in the epochs that begin from now on."""
        self.source.times = PieceTimes()
        return self.source.times

    def start(
        self, order: EpochOrder, state: State, finish: Callable[[], None], epoch_start: EpochStart
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in the state.

        finish: called after the last one.
        """
        assert isinstance(order, LoaderOrder)
        with epoch_start.restored:
            native_order, start = _begin(order, epoch_start.seeds.order, int(state["delivered"]))
        # The core adds to this number with each batch; Position reads it at any moment.
        state["delivered"] = np.array(state["delivered"], np.int64)
        source = self.source
        delivery = Delivery(source.assemble, state["delivered"], finish, start)
        return open_stream(self.plan, native_order, source.pools, delivery, source.times)


def _begin(order: LoaderOrder, seed: int, delivered: int) -> tuple[NativeOrder, int]:
    """The order, and the first index to deliver. A sampler makes its first draws in this call."""
    native_order, start = order.native(seed, delivered)
    if is_fed(native_order):
        # A piece is drawn when it is asked for. The first one is asked for here, inside the context
        # that restores the random generators.
        native_order = chain(list(islice(native_order, 1)), native_order)
    return native_order, start


class EpochPlan(NamedTuple):
    """The way in which Python makes the batches of an epoch."""

    source: BatchSource | StreamBatches
    groups: Groups
    tuning: Tuning
    draw_for: Callable[[int], None] | None = None
    """Reads a user's sampler at DataLoader's moments, if there is one: called with the number of
    each batch before it is delivered."""


@dataclass(frozen=True)
class PythonEpochs:
    """Threads of Python, or processes, which make batches of Datasets and iterables, apply
    transforms, and bring batches to a device."""

    reading: Reading
    transform: Callable[[Tree], Tree] | None
    is_batched: bool
    """False: single samples are delivered."""
    shows_views: bool
    """True: batches are views of the source's memory if it has any."""
    name: ClassVar[str] = "python"

    def record(self) -> None:
        """Record nothing: only the core makes batches in pieces."""

    def start(
        self, order: EpochOrder, state: State, finish: Callable[[], None], epoch_start: EpochStart
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in the state.

        finish: called after the last one.
        """
        seeds = epoch_start.seeds
        draws = SampleDraws(seeds.samples, state["epoch"], seeds.is_base, seeds.is_drawn_each_epoch)
        # The first draws of a sampler or an order are part of the start of the epoch, so they are
        # made inside the context that restores the random generators.
        with epoch_start.restored:
            plan = self.plan(order, state, epoch_start, draws)
        source = prepare_source(plan.source, plan.tuning.num_threads, draws)
        transform = seed_transform(self.transform, draws.begin, self.is_batched)
        batches, groups = start_reading(self.reading.processes, source, plan.groups, draws)
        pipeline = replace(self.reading.pipeline, tuning=plan.tuning)
        return pipeline.start(batches, groups, transform).deliver(state, finish, plan.draw_for)

    def plan(
        self, order: EpochOrder, state: State, epoch_start: EpochStart, draws: SampleDraws
    ) -> EpochPlan:
        """The plan of the rest of an epoch, of which the first batch's indices have been drawn."""
        delivered, tuning = int(state["delivered"]), self.reading.pipeline.tuning
        source = self.reading.source
        if isinstance(order, StreamOrder):
            assert isinstance(source, IterableSource)
            batches = source.start(order, state, draws)
            return EpochPlan(batches, number_batches(order, delivered), tuning)
        assert not isinstance(source, IterableSource)
        if order.draws.is_paced:
            order, paced = _open_sampler(order, epoch_start, delivered)
            if paced is not None:
                by_processes = self.reading.processes is not None
                tuning = slow_down(tuning, epoch_start.lead, by_processes=by_processes)
                return EpochPlan(source, paced, tuning, paced.draw_for)
        planned, groups = _plan_reads(source, order, epoch_start.seeds.order, delivered, tuning)
        if self.shows_views and planned is source and isinstance(source, ColumnSource):
            planned = replace(source, shows_views=True)
        # A group is drawn when it is asked for; the first one is asked for here.
        return EpochPlan(planned, chain(list(islice(groups, 1)), groups), tuning)


def _plan_reads(
    source: BatchSource, order: LoaderOrder, seed: int, delivered: int, tuning: Tuning
) -> tuple[BatchSource, Groups]:
    """The source of this rank's batches, with direct reads if they pay, and the batches' groups.

    seed: of the epoch's order. delivered: the number of its batches that have been delivered.
    """
    has_pieces = order.batch_sampler is None
    is_column_source = isinstance(source, ColumnSource)
    if not is_column_source or not has_pieces or not may_read_directly(source, order.shuffle):
        return source, group_batches(order.batches(seed, delivered), tuning.group_rows)
    pieces = map(list, order.batches_by_piece(seed, delivered))
    # The longer of the first two pieces is examined, because the first may be the source's last
    # block, which may be short.
    early = list(islice(pieces, 2))
    first = np.concatenate(max(early, key=len, default=[np.empty(0, np.int64)]))
    pieces = chain(early, pieces)
    # Each thread makes a piece and has prefetch_factor pieces ahead; the loop and the sampler have
    # a few more.
    num_pieces = max(1, tuning.num_threads) * (tuning.prefetch_factor + 2) + 2
    direct_source = use_direct_reads(source, first, num_pieces)
    if direct_source is not None and (np.diff(first) <= 0).any():
        # A batch of a shuffled piece has rows from all of its stretches, so the piece is read as a
        # whole.
        return direct_source, pieces
    batches = chain.from_iterable(pieces)
    return direct_source or source, group_batches(batches, tuning.group_rows)


def _open_sampler(
    order: LoaderOrder, epoch_start: EpochStart, delivered: int
) -> tuple[LoaderOrder, PacedGroups | None]:
    """The order, and the groups of a sampler that is read as DataLoader reads it. If the sampler's
    indices exist already, the order of these indices, and None."""
    opened = epoch_start.opened
    if opened is None:
        opened = iter(order.user_sampler)
    if (drawn := without_sampler(order, opened)) is not None:
        return drawn, None
    batches = islice(read_batches(order, opened), delivered, None)
    return order, PacedGroups(batches, order.num_samples, epoch_start.lead)
