"""PythonEpochs, the engine that starts epochs with batches made by Python.

It reads Datasets and iterables, applies transforms, and copies batches to devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import ClassVar, NamedTuple

import numpy as np

from fastloop.fastloader.batching import Groups, group_batches
from fastloop.fastloader.checkpoint import State
from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource, prepare_source
from fastloop.fastloader.iterable_source import IterableSource, StreamBatches, number_batches
from fastloop.fastloader.large_files import may_read_directly, use_direct_reads
from fastloop.fastloader.loader_tuning import Tuning, slow_down
from fastloop.fastloader.order import EpochOrder, LoaderOrder, StreamOrder
from fastloop.fastloader.paced_samplers import PacedGroups, read_batches, without_sampler
from fastloop.fastloader.process_reading import start_reading
from fastloop.fastloader.reading import Reading
from fastloop.fastloader.sample_draws import SampleDraws, seed_transform
from fastloop.fastloader.torch_draws import EpochStart


class EpochPlan(NamedTuple):
    """The plan by which Python makes the batches of an epoch."""

    source: BatchSource | StreamBatches
    groups: Groups
    tuning: Tuning
    draw_for: Callable[[int], None] | None = None
    """A function that reads a user's sampler at DataLoader's moments; None if there is no sampler,
    or if it is read ahead. Called with the number of each batch before the batch is delivered."""


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

        finish: called after the last batch.
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
        """The plan of the rest of an epoch; the indices of its first batch have been drawn."""
        source = self.reading.source
        delivered = int(state["delivered"])
        if isinstance(order, StreamOrder):
            assert isinstance(source, IterableSource)
            batches = source.start(order, state, draws)
            groups = number_batches(order, delivered)
            return EpochPlan(batches, groups, self.reading.pipeline.tuning)
        assert not isinstance(source, IterableSource)
        return self._plan_indices(source, order, epoch_start, delivered)

    def _plan_indices(
        self, source: BatchSource, order: LoaderOrder, epoch_start: EpochStart, delivered: int
    ) -> EpochPlan:
        """The plan of an epoch of a source that is read by indices."""
        tuning = self.reading.pipeline.tuning
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
    opened = iter(order.user_sampler) if epoch_start.opened is None else epoch_start.opened
    if (drawn := without_sampler(order, opened)) is not None:
        return drawn, None
    batches = islice(read_batches(order, opened), delivered, None)
    return order, PacedGroups(batches, order.num_samples, epoch_start.lead)
