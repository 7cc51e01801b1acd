"""Making the batches of an epoch: by threads or by the consumer, whole or in parts, with a
transform, on a device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from fastloop.core.torch_threads import keep_to_one_torch_thread, one_torch_thread
from fastloop.fastloader.batching import BatchGroup
from fastloop.fastloader.buffers import BufferPool
from fastloop.fastloader.columns.array import ArrayColumn
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource, DatasetSource
from fastloop.fastloader.device_copy import DeviceCopies
from fastloop.fastloader.prefetch import ConsumerShare, map_in_threads
from fastloop.fastloader.seeded_map import GlobalDraws, map_seeded
from fastloop.fastloader.source import ColumnSource
from fastloop.fastloader.thread_map import map_ahead
from fastloop.fastloader.tuning import GROUP_BYTES, Tuning, max_consumer_groups

GroupStream = Generator[Sequence[Tree], None, None]
"""The batches of one group after the other."""
Transform = Callable[[Tree, list[int]], Tree]
"""From a batch and the indices of its samples to what is delivered."""


@dataclass(frozen=True)
class Pipeline:
    """The steps from groups of indices to batches."""

    tuning: Tuning
    batch_size: int
    transform: Transform | None
    target: torch.device | None
    is_fed: bool
    """True where only the loop's thread may ask for the groups."""
    pins: bool
    """True where tensors that transforms and Datasets make are copied to pinned memory."""
    draws: GlobalDraws

    def start(
        self, source: BatchSource, pool: BufferPool, groups: Iterable[BatchGroup]
    ) -> GroupStream:
        """Start the threads, and return the batches of each group."""
        nbytes = max(GROUP_BYTES, sum(source.row_nbytes) * self.batch_size)
        run = partial(self._map, source, nbytes, self.tuning.prefetch_factor)
        if self.target is None:
            make = partial(_make_batches, source, pool, self.transform)
            return run(partial(_pin, make) if self.pins else make, groups)
        copies = DeviceCopies(self.target)
        if self.transform is None and isinstance(source, ColumnSource):
            source = replace(source, place=copies.place)
            make = partial(copies.make, partial(_make_batches, source, pool, None))
        else:
            make = partial(_make_batches, source, pool, self.transform)
            make = partial(copies.make_and_place, make)
        return copies.receive(run(make, groups))

    def start_in_parts(
        self, source: ColumnSource, pool: BufferPool, groups: Iterable[BatchGroup]
    ) -> GroupStream:
        """As `start`, for large batches of columns, without a transform or a device."""
        rows, ahead = self.tuning.part_rows, self.tuning.parts_ahead
        parts, nbytes = split_into_parts(source, pool, groups, rows), sum(source.row_nbytes) * rows
        first = -(-self.batch_size // rows)
        return join_parts(self._map(source, nbytes, ahead, fill_part, parts, first))

    def _map(
        self,
        source: BatchSource,
        nbytes: int,
        ahead: int,
        make: Callable[[Any], Any],
        items: Iterable[Any],
        first: int = 0,
    ) -> Generator[Any, None, None]:
        initialize, num_threads = None, self.tuning.num_threads
        if num_threads and (self.transform is not None or not _only_copies(source)):
            # OpenMP's threads wait for each other, and one busy core holds up all of them
            initialize = keep_to_one_torch_thread
            make = partial(_make_single_threaded, make)
        if self.transform is not None or isinstance(source, DatasetSource):
            return map_seeded(make, items, num_threads, ahead, self.draws)
        if self.is_fed:
            return map_ahead(make, items, num_threads, ahead)
        # samples that cost more than their copy keep every core busy with the threads alone
        cheap = source.is_groupable and self.target is None
        share = ConsumerShare(max_consumer_groups(nbytes), first) if cheap else ConsumerShare()
        return map_in_threads(make, items, num_threads, ahead, share, initialize)


def _only_copies(source: BatchSource) -> bool:
    """True where no operation runs that torch would divide among its own threads."""
    return isinstance(source, ColumnSource) and all(
        isinstance(column, ArrayColumn) for column in source.columns
    )


def _make_single_threaded(make: Callable[[Any], Any], item: Any) -> Any:
    # for the consumer, which makes items, too: its OpenMP threads would go on spinning afterwards
    with one_torch_thread():
        return make(item)


def _make_batches(
    source: BatchSource, pool: BufferPool, transform: Transform | None, group: BatchGroup
) -> Sequence[Tree]:
    batches = source.batches(group, pool)
    if transform is None:
        return batches
    return [transform(batch, its) for batch, its in zip(batches, group.split(), strict=True)]


def _pin(make: Callable[[Any], Sequence[Tree]], item: Any) -> Sequence[Tree]:
    def pin(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_pinned() else tensor.pin_memory()

    return [pytree.tree_map_only(torch.Tensor, pin, batch) for batch in make(item)]


@dataclass(frozen=True)
class Part:
    """Some rows of a group, in the group's memory.

    Threads fill parts concurrently: parts have no row in common, and the consumer sees the memory
    only once the last part, and with it all others, has been received.
    """

    source: ColumnSource
    group: BatchGroup
    rows: Sequence[np.ndarray]
    """The group's memory for each column, valid as long as the batches are held."""
    batches: Sequence[Tree]
    """The group's batches, complete once all parts are filled. They are assembled beforehand: after
    the last part the consumer would wait for it, while a thread holds the GIL to start the next
    group, for half a millisecond of a batch that takes three."""
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """True for the last part of its group."""
        return self.stop == len(self.group.indices)


def split_into_parts(
    source: ColumnSource, pool: BufferPool, groups: Iterable[BatchGroup], num_rows: int
) -> Iterator[Part]:
    """Parts of num_rows rows of each group, whose memory is leased as its first part is drawn."""
    for group in groups:
        memory, count = source.lease(group, pool), len(group.indices)
        batches = source.assemble(source.split(memory.tensors, group))
        for start in range(0, count, num_rows):
            yield Part(source, group, memory.rows, batches, start, min(start + num_rows, count))
        del memory, batches  # or they would be held until the next group is drawn


def fill_part(part: Part) -> Part:
    """Gather the part's rows, and return the part."""
    span = slice(part.start, part.stop)
    part.source.fill(part.group.indices[span], [rows[span] for rows in part.rows])
    return part


def join_parts(parts: Generator[Part, None, None]) -> GroupStream:
    """The batches of each group once all of its parts are filled; closing it closes `parts`."""
    try:
        for part in parts:
            if part.is_last:
                batches = part.batches
                del part  # or it would be held while the consumer has the batches
                yield batches
                del batches
    finally:
        parts.close()
