"""The opened source of a loader, with the processes, threads and stages that read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastloop.fastloader.column_source import ColumnSource
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_changes import DatasetWatch, watch_dataset
from fastloop.fastloader.dataset_source import BatchSource
from fastloop.fastloader.iterable_source import IterableSource
from fastloop.fastloader.loader_settings import LoaderSettings
from fastloop.fastloader.loader_tuning import tune
from fastloop.fastloader.native_stream import MemoryPools, NativeColumns, WorkTimes, open_columns
from fastloop.fastloader.open_source import count_samples, open_source
from fastloop.fastloader.pipeline import Pipeline
from fastloop.fastloader.process_reading import ProcessReading, choose_processes
from fastloop.fastloader.torch_draws import DrawMoments, choose_moments


@dataclass
class NativeSource:
    """The columns of a tree, as the core reads them, and caches reused between epochs: batch memory
    and idle threads."""

    columns: NativeColumns
    assemble: Callable[[tuple[torch.Tensor, ...]], Tree] | None
    """(a tensor of each column) -> batch; None: the only column's tensor is the batch."""
    pools: MemoryPools = field(default_factory=MemoryPools)
    times: WorkTimes | None = None
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
    """Tells whether the dataset was changed; None for a source that needs no watch."""
    native: NativeSource | None
    """The source's columns in the core; None: only Python can make its batches."""
    processes: ProcessReading | None
    """The processes that read a Dataset; None: threads do."""
    pipeline: Pipeline
    """The stages by which Python makes batches from groups of indices; it also has the number of
    threads, which the core uses too."""
    moments: DrawMoments
    """The moments at which epochs draw random numbers."""
    is_unbatched: bool
    """True if batch_size and batch_sampler were None when the source was opened."""
    asks_for_lists: bool
    """True if the sampler gave lists of indices when the source was opened."""

    def __getstate__(self) -> dict[str, Any]:
        """Pickle all fields except the source, its watch and the core's columns, which another
        process opens itself."""
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

    def is_for(self, settings: LoaderSettings) -> bool:
        """True if the source can be read on with these settings: they ask for the same kind of
        items, and its length is unchanged."""
        asked = settings.is_unbatched, settings.asks_for_lists
        is_as_long = self.num_samples == count_samples(self.source)
        return asked == (self.is_unbatched, self.asks_for_lists) and is_as_long


def open_reading(settings: LoaderSettings) -> Reading:
    """Open a loader's source, and choose the processes, threads and device of its batches.

    Raises ValueError for settings that are invalid on this system, or with this source.
    """
    source = open_source(settings)
    native = open_natively(source)
    processes = choose_processes(settings, source)
    target = settings.target
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
