"""PythonEpochs, the engine that starts epochs with batches made by Python.

It reads Datasets and iterables, applies transforms, and copies batches to devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import ClassVar, NamedTuple

import numpy as np

from fastloop.fastloader.batch_transform import seed_transform
from fastloop.fastloader.batching import Groups, group_batches
from fastloop.fastloader.checkpoint import EpochProgress
from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource, DatasetSource, prepare_source
from fastloop.fastloader.iterable_source import IterableSource, StreamBatches, number_batches
from fastloop.fastloader.large_files import may_read_directly, use_direct_reads
from fastloop.fastloader.loader_tuning import Tuning, slow_down
from fastloop.fastloader.order import EpochOrder, LoaderOrder, StreamOrder
from fastloop.fastloader.paced_samplers import PacedGroups, read_batches, without_sampler
from fastloop.fastloader.reading import Reading
from fastloop.fastloader.sample_draws import SampleDraws
from fastloop.fastloader.torch_draws import EpochStart


class EpochPlan(NamedTuple):
    """The plan by which Python makes the batches of an epoch."""

    source: BatchSource | StreamBatches
    """The source that reads the batches."""
    groups: Groups
    """The indices of the batches, in groups of batches that are made together."""
    tuning: Tuning
    """The number of threads, and the limits of their reading ahead."""
    draw_for: Callable[[int], None] | None = None
    """A function that reads a user's sampler when DataLoader would read it; called with the number
    of each batch, before that batch is delivered. None if there is no sampler, or if it may be read
    ahead."""


@dataclass(frozen=True)
class PythonEpochs:
    """The engine that makes batches by Python code, in threads or in processes.

    The batches are those of Datasets and iterables, those with transforms or for a device, and all
    others that the native core does not make, see `choose_engine`.
    """

    reading: Reading
    """The opened source, and the processes and threads that read it."""
    transform: Callable[[Tree], Tree] | None
    """The user's transform of a batch or of a single sample; None: no transform."""
    is_batched: bool
    """False: single samples are delivered."""
    shows_views: bool
    """True: batches are views of the source's memory, not copies, if the source has such memory."""
    name: ClassVar[str] = "python"

    def record(self) -> None:
        """Do nothing: only the native core makes batches in pieces, and records their times."""

    def start(
        self,
        order: EpochOrder,
        progress: EpochProgress,
        finish: Callable[[], None],
        epoch_start: EpochStart,
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in `progress`.

        order: the order of the epoch. finish: called after the last batch. epoch_start: the seeds
        of the epoch, and the states of random generators.
        """
        seeds = epoch_start.seeds
        draws = SampleDraws(seeds.samples, progress.epoch, seeds.is_base, seeds.is_drawn_each_epoch)
        # The first draws of a sampler or an order are part of the start of the epoch, so they are
        # made inside the context that restores the random generators.
        with epoch_start.restored:
            plan = self.plan(order, progress, epoch_start, draws)
        source = prepare_source(plan.source, plan.tuning.num_threads, draws)
        transform = seed_transform(self.transform, draws.begin, self.is_batched)
        groups = plan.groups
        if self.reading.processes is not None:
            # Only a Dataset is read by processes, see choose_processes.
            assert isinstance(source, DatasetSource)
            source = self.reading.processes.start(source, groups, draws)
            groups = source.groups()
        pipeline = replace(self.reading.pipeline, tuning=plan.tuning)
        return pipeline.start(source, groups, transform).deliver(progress, finish, plan.draw_for)

    def plan(
        self,
        order: EpochOrder,
        progress: EpochProgress,
        epoch_start: EpochStart,
        draws: SampleDraws,
    ) -> EpochPlan:
        """The plan of the rest of an epoch; the indices of its first batches have been drawn."""
        source = self.reading.source
        delivered = int(progress.delivered)
        if isinstance(order, StreamOrder):
            assert isinstance(source, IterableSource)
            batches = source.start(order, progress, draws)
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
        # The indices of a group are drawn when the group is asked for. The first group is asked for
        # here, so that its indices are drawn at the start of the epoch.
        return EpochPlan(planned, chain(list(islice(groups, 1)), groups), tuning)


def _plan_reads(
    source: BatchSource, order: LoaderOrder, seed: int, delivered: int, tuning: Tuning
) -> tuple[BatchSource, Groups]:
    """The source of this rank's batches, and the groups of their indices.

    If it saves time, the source reads files directly, past the page cache. seed: the seed of the
    epoch's order. delivered: number of the epoch's batches that have been delivered already.
    """
    has_pieces = order.batch_sampler is None
    is_column_source = isinstance(source, ColumnSource)
    if not is_column_source or not has_pieces or not may_read_directly(source, order.shuffle):
        return source, group_batches(order.batches(seed, delivered), tuning.group_rows)
    pieces = map(list, order.batches_by_piece(seed, delivered))
    # The longer of the first two pieces is examined. The first alone may be too short, because it
    # may be the source's last block of rows.
    early = list(islice(pieces, 2))
    first = np.concatenate(max(early, key=len, default=[np.empty(0, np.int64)]))
    pieces = chain(early, pieces)
    # The number of pieces in memory at a time: each thread makes one and has prefetch_factor ready,
    # and the loop and the sampler hold a few more.
    num_pieces = max(1, tuning.num_threads) * (tuning.prefetch_factor + 2) + 2
    direct_source = use_direct_reads(source, first, num_pieces)
    if direct_source is not None and (np.diff(first) <= 0).any():
        # The indices of a piece are shuffled, so each batch has rows from all over the piece. The
        # piece is therefore read as a whole, in stretches of neighbouring rows.
        return direct_source, pieces
    batches = chain.from_iterable(pieces)
    return direct_source or source, group_batches(batches, tuning.group_rows)


def _open_sampler(
    order: LoaderOrder, epoch_start: EpochStart, delivered: int
) -> tuple[LoaderOrder, PacedGroups | None]:
    """The order, and the groups of a user's sampler that is read when DataLoader would read it.

    If the sampler's indices exist already, as in a list, returns the order of these indices, and
    None.
    """
    opened = iter(order.user_sampler) if epoch_start.opened is None else epoch_start.opened
    if (drawn := without_sampler(order, opened)) is not None:
        return drawn, None
    batches = islice(read_batches(order, opened), delivered, None)
    return order, PacedGroups(batches, order.num_samples, epoch_start.lead)
