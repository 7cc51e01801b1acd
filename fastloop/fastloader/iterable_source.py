"""Make batches of a source without indices, such as an IterableDataset: `IterableSource`.

The loop itself reads the source. Or one thread, or worker processes of a DataLoader, read the
source ahead of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterDataPipe, graph_settings

from fastloop.core.seeds import epoch_seed
from fastloop.fastloader.checkpoint import DATASET, HAS_ENDED, EpochProgress
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import NO_BATCH, FailedBatch, Unstoppable, try_batch
from fastloop.fastloader.global_draws import draw_globally
from fastloop.fastloader.loader_settings import WorkerProcesses
from fastloop.fastloader.order import StreamOrder
from fastloop.fastloader.sample_draws import COLLATE, SAMPLE, Begin, SampleDraws


@dataclass(frozen=True)
class IterableSource:
    """An iterable, and the function and the processes that make batches of its samples."""

    iterable: Any
    """An object with `__iter__`, which yields samples."""
    collate_fn: Callable[[Any], Tree]
    """Makes a batch of a list of samples; with batch_size=None called with a single sample."""
    workers: WorkerProcesses | None
    """Processes that each read a share of the iterable; None: the loop or a thread reads it."""

    @property
    def num_samples(self) -> int | None:
        """The number of samples; None if the iterable has no length."""
        try:
            return len(self.iterable)
        except TypeError:
            return None

    @property
    def is_sharded(self) -> bool:
        """True for a Hugging Face dataset that split_dataset_by_node has returned."""
        return getattr(self.iterable, "_distributed", None) is not None

    @property
    def _collate(self) -> Callable[[Any], Tree]:
        """The collate_fn, from which a StopIteration is raised as a RuntimeError."""
        return Unstoppable(self.collate_fn, "the collate_fn")

    def start(
        self, order: StreamOrder, progress: EpochProgress, draws: SampleDraws
    ) -> StreamBatches:
        """The batches of the rest of an epoch; samples are read only when a batch is asked for.

        progress: receives the state of the iterable after each batch, unless processes read the
        iterable. draws: the seeds of the samples.
        """
        if self.workers is None:
            opened = self._open(progress, draws)
            return StreamBatches(self._read(order, progress, draws.begin, opened))
        batches = self._read_by_processes(self.workers, order, draws)
        return StreamBatches(islice(batches, int(progress.delivered), None))

    def _read_by_processes(
        self, workers: WorkerProcesses, order: StreamOrder, draws: SampleDraws
    ) -> Iterator[Tree | FailedBatch]:
        """Yield the batches of an epoch, which worker processes of a DataLoader make.

        In a process, the iterable asks get_worker_info for its share. The processes start when the
        first batch is asked for, and end with this iterator. DataLoader seeds them from the seed of
        the epoch.
        """
        seed = draws.seed if draws.is_base else epoch_seed(draws.seed, draws.epoch)
        loader = DataLoader(
            self.iterable,
            batch_size=order.batch_size,
            drop_last=order.drop_last,
            collate_fn=self._collate,
            num_workers=workers.num_workers,
            prefetch_factor=workers.prefetch_factor,
            timeout=workers.timeout,
            worker_init_fn=workers.worker_init_fn,
            multiprocessing_context=workers.multiprocessing_context,
            # DataLoader draws the base seed of its workers from this generator, and so leaves the
            # program's generator alone.
            generator=torch.Generator("cpu").manual_seed(seed),
        )
        if hasattr(self.iterable, "set_epoch"):
            self.iterable.set_epoch(draws.epoch)
        batches = iter(loader)
        while (batch := try_batch(next, batches, NO_BATCH)) is not NO_BATCH:
            yield batch
            del batch  # otherwise this frame would hold the batch while it waits for the next one

    def _open(self, progress: EpochProgress, draws: SampleDraws) -> Iterator[Any] | None:
        """The opened iterator, if the iterable is itself an iterator; otherwise None.

        A sample that such an iterable has yielded can't be read again. So the iterable's state is
        noted before its first sample is read. Its `__iter__` is called before that, because it may
        reset the state.
        """
        if not isinstance(self.iterable, Iterator):
            return None
        self._set_epoch(progress)
        with draw_globally():
            draws.begin(SAMPLE, (int(progress.delivered),))
            opened = iter(self.iterable)
        if progress.start.of_iterable.get(DATASET) is None:
            self._note_state(progress, int(progress.delivered))
        return opened

    def _read(
        self,
        order: StreamOrder,
        progress: EpochProgress,
        begin: Begin,
        opened: Iterator[Any] | None,
    ) -> Iterator[Tree | FailedBatch]:
        """Yield the batches of the rest of an epoch.

        If the iterable has no state of its own, the samples of batches that were delivered before
        are read again and skipped. opened: the result of `_open`.
        """
        size = order.rows_per_batch
        first = int(progress.delivered)
        skipped = self._restore(progress, first)
        if progress.start.of_iterable.get(HAS_ENDED):
            return
        samples = _SeededSamples(self.iterable, begin, (first - skipped) * size, opened)
        for number in count(first - skipped):
            # Skipped batches are read, too, because only reading advances the iterable. The number
            # of a sample in the epoch determines its seed.
            group = try_batch(list, islice(samples, size))
            has_failed = isinstance(group, FailedBatch)
            has_ended = not has_failed and len(group) < size
            if has_ended and (not group or order.drop_last):
                return
            if number >= first:
                self._note_state(progress, number + 1, has_ended=has_ended)
                if has_failed:
                    yield group  # a generator ends with its error; another iterator may continue
                else:
                    begin(COLLATE, range(number * size, number * size + len(group)))
                    yield try_batch(self._collate, group[0] if order.batch_size is None else group)
            # An iterator that has ended is asked for nothing more, because it might begin again.
            if has_ended:
                return

    def _restore(self, progress: EpochProgress, first: int) -> int:
        """Restore the iterable's own state, if it was saved; returns the number of batches to skip.

        first: number of batches of the epoch that were delivered before.
        """
        self._set_epoch(progress)
        saved = progress.start.of_iterable.get(DATASET)
        if saved is None:
            return first
        self.iterable.load_state_dict(deepcopy(saved))
        return 0

    def _set_epoch(self, progress: EpochProgress) -> None:
        """Call set_epoch of the iterable, if it has this method."""
        if hasattr(self.iterable, "set_epoch"):
            self.iterable.set_epoch(progress.epoch)

    def _note_state(self, progress: EpochProgress, number: int, *, has_ended: bool = False) -> None:
        """Note the iterable's own state after `number` batches, if it has a state_dict().

        has_ended: True if the iterable has no more samples.
        """
        if not (hasattr(self.iterable, "state_dict") and hasattr(self.iterable, "load_state_dict")):
            return
        # A thread reads ahead of the loop, so the state after a batch is kept until the loop has
        # received the batch.
        states = progress.streamed
        noted = {DATASET: deepcopy(self.iterable.state_dict())}
        # The state at the end of an iterable may be the one with which it begins again. So the end
        # is noted, too.
        states[number] = noted | {HAS_ENDED: True} if has_ended else noted
        for done in [other for other in list(states) if other < int(progress.delivered)]:
            del states[done]


def shuffle_pipe(source: Any, shuffle: Any) -> tuple[Any, Any]:
    """The source, and the shuffling that is left to the loader.

    A pipe of torch.utils.data.datapipes shuffles by itself. As in DataLoader, `shuffle` switches
    its shuffling on or off, and None is left to the loader. For other sources, and for
    shuffle=None, both arguments are returned unchanged.
    """
    if not isinstance(source, IterDataPipe) or shuffle is None:
        return source, shuffle
    return graph_settings.apply_shuffle_settings(source, shuffle=shuffle), None


@dataclass(frozen=True)
class StreamBatches:
    """The batches of a running epoch, which one thread at a time asks for."""

    iterator: Iterator[Tree | FailedBatch]

    def batches(self, group: Sequence[np.ndarray]) -> list[Tree | FailedBatch]:
        """The next batches, as many as `group` has; fewer at the end of the epoch."""
        return list(islice(self.iterator, len(group)))


def number_batches(order: StreamOrder, delivered: int) -> Iterator[list[np.ndarray]]:
    """Groups of one batch each, without end; a batch is an array of the numbers of its samples.

    delivered: number of batches of the epoch that were delivered before.
    """
    size = order.rows_per_batch
    return ([np.arange(number * size, (number + 1) * size)] for number in count(delivered))


class _SeededSamples:
    """The samples of an iterable, each read with the seed of its number in the epoch.

    begin: sets the seed of a sample before the sample is read. first: number of the first sample.
    opened: the iterator over the samples; None: `iterable` is opened for the first sample.
    """

    def __init__(
        self, iterable: Any, begin: Begin, first: int, opened: Iterator[Any] | None
    ) -> None:
        self._iterable = iterable
        self._begin = begin
        self._number = first
        self._samples = opened

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        # The iterable draws random numbers for a sample before it yields the sample. So the seed is
        # set first.
        self._begin(SAMPLE, (self._number,))
        self._number += 1
        if self._samples is None:
            # If iter() fails, this empty iterator stays. Otherwise each further batch would call
            # iter() again, and the epoch would fail without end.
            self._samples = iter(())
            self._samples = iter(self._iterable)
        return next(self._samples)
