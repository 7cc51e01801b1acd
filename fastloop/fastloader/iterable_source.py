"""IterableSource, which makes batches of a source without indices, such as an IterableDataset.

The loop reads the source, or one thread or DataLoader's worker processes read it ahead of the loop.
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
from fastloop.fastloader.checkpoint import HAS_ENDED, STREAMED, State
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.failed_batch import NO_BATCH, FailedBatch, Unstoppable, try_batch
from fastloop.fastloader.loader_settings import WorkerProcesses
from fastloop.fastloader.order import StreamOrder
from fastloop.fastloader.sample_draws import COLLATE, SAMPLE, Begin, SampleDraws, draw_globally


@dataclass(frozen=True)
class IterableSource:
    """An iterable, and the function and the processes that make batches of its samples."""

    iterable: Any
    collate_fn: Callable[[Any], Tree]
    workers: WorkerProcesses | None
    """Processes that each read a share of it; None: the loop or a thread reads it."""

    @property
    def num_samples(self) -> int | None:
        """The number of samples; None if the iterable does not say."""
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
        return Unstoppable(self.collate_fn, "the collate_fn")

    def start(self, order: StreamOrder, state: State, draws: SampleDraws) -> StreamBatches:
        """The rest of an epoch; nothing is read before the first batch is asked for.

        The state that the iterable has after each batch is noted in `state`.
        """
        if self.workers is None:
            return StreamBatches(self._read(order, state, draws.begin, self._open(state, draws)))
        batches = self._read_by_processes(self.workers, order, draws)
        return StreamBatches(islice(batches, int(state["delivered"]), None))

    def _read_by_processes(
        self, workers: WorkerProcesses, order: StreamOrder, draws: SampleDraws
    ) -> Iterator[Tree | FailedBatch]:
        """The batches of an epoch, by DataLoader's worker processes: an iterable asks
        get_worker_info for its share.

        The processes start with the first batch, and end with this iterator. They are seeded with
        the epoch's seed, as DataLoader seeds them.
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
            # DataLoader draws the workers' base seed from this generator: not from the program's.
            generator=torch.Generator("cpu").manual_seed(seed),
        )
        if hasattr(self.iterable, "set_epoch"):
            self.iterable.set_epoch(draws.epoch)
        batches = iter(loader)
        while (batch := try_batch(next, batches, NO_BATCH)) is not NO_BATCH:
            yield batch
            del batch  # or it would be held while the next is waited for

    def _open(self, state: State, draws: SampleDraws) -> Iterator[Any] | None:
        """The iterator, if the iterable is its own iterator; else None.

        The samples that such an iterable has read are gone, for other loaders too. Its state is
        therefore noted before it reads anything, but after it is opened, because its `__iter__` may
        begin again.
        """
        if not isinstance(self.iterable, Iterator):
            return None
        self._set_epoch(state)
        with draw_globally():
            draws.begin(SAMPLE, (int(state["delivered"]),))
            opened = iter(self.iterable)
        if state.get("dataset") is None:
            self._note_state(state, int(state["delivered"]))
        return opened

    def _read(
        self, order: StreamOrder, state: State, begin: Begin, opened: Iterator[Any] | None
    ) -> Iterator[Tree | FailedBatch]:
        """The batches of the rest of an epoch.

        If the iterable has no state of its own, the samples of delivered batches are read again,
        and passed over.
        """
        size = order.batch_size or 1
        first = int(state["delivered"])
        skipped = self._restore(state, first)
        if state.get(HAS_ENDED):
            return
        samples = _SeededSamples(self.iterable, begin, (first - skipped) * size, opened)
        for number in count(first - skipped):
            # A skipped batch is read, too, because only reading advances the iterable. Each sample
            # has the seed of its number in the epoch.
            group = try_batch(list, islice(samples, size))
            has_failed = isinstance(group, FailedBatch)
            has_ended = not has_failed and len(group) < size
            if has_ended and (not group or order.drop_last):
                return
            if number >= first:
                self._note_state(state, number + 1, has_ended=has_ended)
                if has_failed:
                    yield group  # a generator has ended with its error, another iterator may go on
                else:
                    begin(COLLATE, range(number * size, number * size + len(group)))
                    yield try_batch(self._collate, group[0] if order.batch_size is None else group)
            # An iterator that has ended is not asked again: it might begin again.
            if has_ended:
                return

    def _restore(self, state: State, first: int) -> int:
        """Bring the iterable to the state's position. Returns how many batches must be skipped from
        there."""
        self._set_epoch(state)
        if state.get("dataset") is None:
            return first
        self.iterable.load_state_dict(deepcopy(state["dataset"]))
        return 0

    def _set_epoch(self, state: State) -> None:
        if hasattr(self.iterable, "set_epoch"):
            self.iterable.set_epoch(state["epoch"])

    def _note_state(self, state: State, number: int, *, has_ended: bool = False) -> None:
        if not (hasattr(self.iterable, "state_dict") and hasattr(self.iterable, "load_state_dict")):
            return
        # The thread is ahead of the loop: the state after each batch is kept until that one is
        # delivered.
        states = state.setdefault(STREAMED, {})
        states[number] = {"dataset": deepcopy(self.iterable.state_dict())}
        # At its end an iterable may have the state with which it begins again.
        if has_ended:
            states[number][HAS_ENDED] = True
        for done in [other for other in list(states) if other < int(state["delivered"])]:
            del states[done]


def shuffle_pipe(source: Any, shuffle: Any) -> tuple[Any, Any]:
    """(source, shuffle) after a pipe of torch.utils.data.datapipes has applied `shuffle` itself.

    As in DataLoader, shuffling within the pipe is switched on or off, and the returned shuffle is
    None. For other sources, and shuffle=None, both are returned unchanged.
    """
    if not isinstance(source, IterDataPipe) or shuffle is None:
        return source, shuffle
    return graph_settings.apply_shuffle_settings(source, shuffle=shuffle), None


@dataclass(frozen=True)
class StreamBatches:
    """The batches of a running epoch, which one thread at a time asks for."""

    iterator: Iterator[Tree | FailedBatch]

    def batches(self, group: Sequence[np.ndarray]) -> list[Tree | FailedBatch]:
        """The next batches, one for each of the group; at the end of the epoch there may be
        fewer."""
        return list(islice(self.iterator, len(group)))


def number_batches(order: StreamOrder, delivered: int) -> Iterator[list[np.ndarray]]:
    """Endless groups of one batch each, with the numbers of its samples."""
    size = order.batch_size or 1
    return ([np.arange(number * size, (number + 1) * size)] for number in count(delivered))


class _SeededSamples:
    """The samples of an iterable, each with the seed of its number in the epoch."""

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
        # The seed is set before the iterable runs: it draws for a sample before it yields it.
        self._begin(SAMPLE, (self._number,))
        self._number += 1
        if self._samples is None:
            # If iter() fails, no samples are left. Otherwise each further batch would try again,
            # and the epoch would fail without end.
            self._samples = iter(())
            self._samples = iter(self._iterable)
        return next(self._samples)
