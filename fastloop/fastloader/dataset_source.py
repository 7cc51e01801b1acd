"""Sources of samples that are read one by one, such as torch's map-style Datasets, and collated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_readers import Open, copy_for_threads
from fastloop.fastloader.failed_batch import FailedBatch, try_batch
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.sample_draws import COLLATE, SAMPLE, Begin, SampleDraws
from fastloop.fastloader.sample_end import refuse_stop
from fastloop.fastloader.source import ColumnSource, seed_columns

CollateFn = Callable[[Any], Tree]


@dataclass(frozen=True)
class DatasetSource:
    """A map-style dataset, read by sample, or by batch if it has `__getitems__`.

    The loader's threads read it, which pays if reading releases the GIL, as files, decoders and
    large numpy operations do.
    """

    dataset: Any
    collate_fn: CollateFn
    is_unbatched: bool
    """True: each sample is delivered by itself, instead of batches."""
    open: Open
    """Gives the dataset and collate_fn to the thread that makes a batch."""
    is_thread_safe: bool = False
    """True if threads may read the dataset at the same time."""
    reads_lists: bool = False
    """True: the dataset itself makes a batch of a list of indices."""
    begin: Begin | None = None
    """Called before anything draws random numbers, with its kind and its samples' indices; None:
    draws are not seeded."""

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, group: Sequence[np.ndarray]) -> list[Tree | FailedBatch]:
        """The results of collate_fn. Several threads call this concurrently."""
        with self.open() as parts:
            return [try_batch(self._batch, *parts, indices.tolist()) for indices in group]

    def batch(self, indices: np.ndarray) -> Tree:
        """The result of collate_fn; raises the error of a sample."""
        with self.open() as parts:
            return self._batch(*parts, indices.tolist())

    def _batch(self, dataset: Any, collate_fn: CollateFn, indices: list[int]) -> Tree:
        samples = self._samples(dataset, indices)
        self._begin(COLLATE, indices)
        try:
            return collate_fn(samples)
        except StopIteration as error:
            # Everywhere here: a StopIteration would end the loop as if there were no more batches.
            raise refuse_stop("the collate_fn", indices) from error

    def _samples(self, dataset: Any, indices: list[int]) -> Any:
        """The argument of the collate_fn."""
        getitems = None if self.is_unbatched else getattr(dataset, "__getitems__", None)
        # Each sample has a seed of its own; a batch that the dataset reads at once has one seed.
        if not self.reads_lists and not getitems:
            samples = [self._sample(dataset, index) for index in indices]
            return samples[0] if self.is_unbatched else samples
        self._begin(SAMPLE, indices)
        try:
            return dataset[indices] if self.reads_lists or not getitems else getitems(indices)
        except StopIteration as error:
            raise refuse_stop("the reading", indices) from error

    def _sample(self, dataset: Any, index: int) -> Any:
        self._begin(SAMPLE, (index,))
        try:
            return dataset[index]
        except StopIteration as error:
            raise refuse_stop("the reading", (index,)) from error

    def _begin(self, kind: int, indices: Sequence[int]) -> None:
        if self.begin is not None:
            self.begin(kind, indices)


BatchSource = ColumnSource | DatasetSource


def prepare_source(
    source: BatchSource | StreamBatches, num_threads: int, draws: SampleDraws
) -> BatchSource | StreamBatches:
    """The source for an epoch: with seeds, and a Dataset copied for threads if they don't share it.

    An iterable's batches are returned as they are. Raises ValueError for a Dataset that can't be
    copied.
    """
    if isinstance(source, ColumnSource):
        return seed_columns(source, draws.epoch_seed)
    if not isinstance(source, DatasetSource):
        return source
    is_copied = num_threads > 1 and not source.is_thread_safe
    parts = source.dataset, source.collate_fn
    opened = copy_for_threads(parts) if is_copied else source.open
    return replace(source, begin=draws.begin, open=opened)
