"""Epochs whose batches Python makes: of Datasets and iterables, with a transform, on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain, islice

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource, prepare_source
from fastloop.fastloader.epoch_order import EpochOrder
from fastloop.fastloader.epoch_plan import Groups, plan_epoch
from fastloop.fastloader.iterable_source import (
    IterableSource,
    StreamBatches,
    StreamOrder,
    number_batches,
)
from fastloop.fastloader.pipeline import Pipeline
from fastloop.fastloader.position import State
from fastloop.fastloader.process_reading import ProcessReading, start_reading
from fastloop.fastloader.random_transforms import seed_transform
from fastloop.fastloader.sample_draws import Begin, SampleDraws
from fastloop.fastloader.source import ColumnSource
from fastloop.fastloader.worker_processes import WorkerProcesses


@dataclass(frozen=True)
class PythonEpochs:
    """A source, and the steps from its samples to a loader's batches."""

    source: BatchSource | IterableSource
    pipeline: Pipeline
    transform: Callable[[Tree], Tree] | None
    is_batched: bool
    """False for single samples."""
    may_show_views: bool
    """True where batches may be views of the source's memory."""
    reading: ProcessReading | WorkerProcesses | None
    """The processes that read the source; None: threads do."""

    def start(
        self,
        order: EpochOrder,
        state: State,
        finish: Callable[[], None],
        restored: AbstractContextManager[None],
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in the state.

        finish: called after the last one. restored: what a sampler draws at its begin is drawn
        within this context.
        """
        draws = SampleDraws(order.seed, state["epoch"])
        with restored:
            source, groups = self.plan(order, state, draws.begin)
            first = list(islice(groups, 1))
        source = prepare_source(source, self.pipeline.tuning.num_threads, draws)
        transform = seed_transform(self.transform, draws.begin, self.is_batched)
        batches, groups = start_reading(self.reading, source, chain(first, groups), draws)
        running = self.pipeline.start(batches, groups, transform)
        return running.deliver(state, finish)

    def plan(
        self, order: EpochOrder, state: State, begin: Begin
    ) -> tuple[BatchSource | StreamBatches, Groups]:
        """Return the source of the rest of an epoch, and the groups of its batches."""
        position = state["epoch"], int(state["delivered"])
        if isinstance(order, StreamOrder):
            assert isinstance(self.source, IterableSource)
            return self.source.start(order, state, begin), number_batches(order, position[1])
        assert not isinstance(self.source, IterableSource)
        source, groups = plan_epoch(self.source, order, position, self.pipeline.tuning)
        shows_views = self.may_show_views and order.is_sequential and self.pipeline.is_plain
        if shows_views and source is self.source and isinstance(source, ColumnSource):
            source = replace(source, shows_views=True)
        return source, groups
