"""DatasetSource, which makes batches of a map-style Dataset: it reads samples and collates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import getitem
from typing import Any

import numpy as np

from fastloop.fastloader.column_source import ColumnSource, seed_columns
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import FailedBatch, refuse_stop, try_batch
from fastloop.fastloader.iterable_source import StreamBatches
from fastloop.fastloader.sample_draws import COLLATE, SAMPLE, Begin, SampleDraws
from fastloop.fastloader.thread_access import CollateFn, OpenUserCode, UserCode, copy_for_threads


@dataclass(frozen=True)
class DatasetSource:
    """A map-style dataset, read by sample, or by batch if it has `__getitems__`.

    The loader's threads read the dataset, which saves time if reading releases the GIL, as reading
    files, decoding and large numpy operations do.
    """

    code: UserCode
    is_unbatched: bool
    """True: each sample is delivered by itself, instead of batches."""
    open: OpenUserCode
    """Gives the code to the thread that makes a batch."""
    is_thread_safe: bool = False
    """True if threads may read the dataset at the same time."""
    reads_lists: bool = False
    """True: the dataset itself makes a batch of a list of indices."""
    begin: Begin | None = None
    """A function that is called before a sample is read (SAMPLE) or a batch is collated (COLLATE),
    as both may draw random numbers. It gets this kind and the samples' indices. None: draws are not
    seeded."""

    def __len__(self) -> int:
        return len(self.code.dataset)

    def batches(self, group: Sequence[np.ndarray]) -> list[Tree | FailedBatch]:
        """The results of collate_fn. Several threads call this concurrently."""
        with self.open() as (dataset, collate_fn):
            return [
                try_batch(self._batch, dataset, collate_fn, indices.tolist()) for indices in group
            ]

    def batch(self, indices: np.ndarray) -> Tree:
        """The result of collate_fn; raises the error of a sample."""
        with self.open() as (dataset, collate_fn):
            return self._batch(dataset, collate_fn, indices.tolist())

    def _batch(self, dataset: Any, collate_fn: CollateFn, indices: list[int]) -> Tree:
        samples = self._samples(dataset, indices)
        self._begin(COLLATE, indices)
        try:
            return collate_fn(samples)
        except StopIteration as error:
            # A StopIteration, here and below, would end the loop as if there were no more batches.
            raise refuse_stop("the collate_fn", indices) from error

    def _samples(self, dataset: Any, indices: list[int]) -> Any:
        """The argument of the collate_fn."""
        getitems = None if self.is_unbatched else getattr(dataset, "__getitems__", None)
        if self.reads_lists:
            getitems = partial(getitem, dataset)
        # Each sample has its own seed; a batch that the dataset reads at once has one seed.
        if not getitems:
            samples = self._read_each(dataset, indices)
            return samples[0] if self.is_unbatched else samples
        self._begin(SAMPLE, indices)
        try:
            return getitems(indices)
        except StopIteration as error:
            raise refuse_stop("the reading", indices) from error

    def _read_each(self, dataset: Any, indices: list[int]) -> list[Any]:
        # The loop calls nothing but `begin` and the dataset: a call takes as long as a cheap
        # sample.
        begin = self.begin
        samples = []
        index = 0
        try:
            for index in indices:
                if begin is not None:
                    begin(SAMPLE, (index,))
                samples.append(dataset[index])
        except StopIteration as error:
            raise refuse_stop("the reading", (index,)) from error
        return samples

    def _begin(self, kind: int, indices: Sequence[int]) -> None:
        if self.begin is not None:
            self.begin(kind, indices)


BatchSource = ColumnSource | DatasetSource


def prepare_source(
    source: BatchSource | StreamBatches, num_threads: int, draws: SampleDraws
) -> BatchSource | StreamBatches:
    """The source for an epoch: with seeds, and a Dataset copied for threads if they don't share it.

    An iterable's batches are returned as they are. Raises ValueError if a Dataset can't be copied.
    """
    if isinstance(source, ColumnSource):
        return seed_columns(source, draws.epoch_seed)
    if not isinstance(source, DatasetSource):
        return source
    is_copied = num_threads > 1 and not source.is_thread_safe
    opened = copy_for_threads(source.code) if is_copied else source.open
    return replace(source, begin=draws.begin, open=opened)
