"""Epochs of batches that Python makes: of Datasets and iterables, with a transform, on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

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
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.paced_samplers import PacedGroups, read_batches, without_sampler
from fastloop.fastloader.pipeline import Pipeline
from fastloop.fastloader.position import State
from fastloop.fastloader.process_reading import ProcessReading, start_reading
from fastloop.fastloader.random_transforms import seed_transform
from fastloop.fastloader.sample_draws import SampleDraws
from fastloop.fastloader.source import ColumnSource
from fastloop.fastloader.torch_draws import EpochBegin
from fastloop.fastloader.worker_processes import WorkerProcesses


@dataclass(frozen=True)
class PythonEpochs:
    """A source, and the steps from its samples to a loader's batches."""

    source: BatchSource | IterableSource
    pipeline: Pipeline
    transform: Callable[[Tree], Tree] | None
    is_batched: bool
    """False: single samples are delivered."""
    may_show_views: bool
    """True if batches may be views of the source's memory."""
    reading: ProcessReading | WorkerProcesses | None
    """The processes that read the source; None: threads do."""

    def start(
        self,
        order: EpochOrder,
        state: State,
        finish: Callable[[], None],
        begin: EpochBegin,
    ) -> Iterator[Tree]:
        """Iterate over the rest of an epoch, and count its batches in the state.

        finish: called after the last one.
        """
        seeds, pipeline, paced = begin.seeds, self.pipeline, None
        draws = SampleDraws(seeds.samples, state["epoch"], seeds.is_base, seeds.is_drawn_anew)
        with begin.restored:
            # The sampler's first draws, and those of an order, belong to the begin of the epoch,
            # inside of the context that restores generators.
            if isinstance(order, LoaderOrder) and order.is_paced:
                order, paced = _open_sampler(order, begin, int(state["delivered"]))
            if paced is None:
                source, groups = self.plan(order, state, draws, seeds.order)
                # Groups are drawn when they are asked for: the first is drawn here.
                first = list(islice(groups, 1))
            else:
                assert not isinstance(self.source, IterableSource)
                source, groups, first = self.source, paced, []
                pipeline = _slow_down(pipeline, begin.lead, self.reading)
        source = prepare_source(source, pipeline.tuning.num_threads, draws)
        transform = seed_transform(self.transform, draws.begin, self.is_batched)
        batches, groups = start_reading(self.reading, source, chain(first, groups), draws)
        running = pipeline.start(batches, groups, transform)
        return running.deliver(state, finish, paced.draw_for if paced else None)

    def plan(
        self, order: EpochOrder, state: State, draws: SampleDraws, seed: int
    ) -> tuple[BatchSource | StreamBatches, Groups]:
        """Return the source of the rest of an epoch, and the groups of its batches."""
        delivered = int(state["delivered"])
        if isinstance(order, StreamOrder):
            assert isinstance(self.source, IterableSource)
            return self.source.start(order, state, draws), number_batches(order, delivered)
        assert not isinstance(self.source, IterableSource)
        position = seed, delivered
        source, groups = plan_epoch(self.source, order, position, self.pipeline.tuning)
        shows_views = self.may_show_views and order.is_sequential and self.pipeline.is_plain
        if shows_views and source is self.source and isinstance(source, ColumnSource):
            source = replace(source, shows_views=True)
        return source, groups


def _open_sampler(
    order: LoaderOrder, begin: EpochBegin, delivered: int
) -> tuple[LoaderOrder, PacedGroups | None]:
    """The order, and the groups of a sampler that is read as DataLoader reads it. If its indices
    exist already: the order of these indices, and None."""
    opened = begin.opened
    if opened is None:
        opened = iter(order.user_sampler)
    if (drawn := without_sampler(order, opened)) is not None:
        return drawn, None
    batches = islice(read_batches(order, opened), delivered, None)
    return order, PacedGroups(batches, order.num_samples, begin.lead)


def _slow_down(pipeline: Pipeline, lead: int, reading: Any) -> Pipeline:
    """The pipeline with no more batches in its threads than the sampler's lead.

    Otherwise a thread would ask the sampler earlier than DataLoader does.
    """
    most = 0 if isinstance(reading, ProcessReading) else max(0, lead - 1)
    num_threads = min(pipeline.tuning.num_threads, most)
    ahead = most // max(1, num_threads) or 1
    tuning = replace(pipeline.tuning, num_threads=num_threads, prefetch_factor=ahead)
    return replace(pipeline, tuning=tuning)
