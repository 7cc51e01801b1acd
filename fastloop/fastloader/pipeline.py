"""Making the batches of an epoch in Python: by threads or by the consumer, with a transform, on a
device."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fastloop.core.torch_threads import one_torch_thread
from fastloop.fastloader.batching import BatchGroup
from fastloop.fastloader.buffers import BufferPool
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource, DatasetSource
from fastloop.fastloader.device_copy import DeviceCopies
from fastloop.fastloader.seeded_map import GlobalDraws, map_seeded
from fastloop.fastloader.source import ColumnSource
from fastloop.fastloader.thread_map import map_ahead
from fastloop.fastloader.tuning import Tuning

GroupStream = Generator[Sequence[Tree], None, None]
"""The batches of one group after the other."""
Transform = Callable[[Tree, list[int]], Tree]
"""From a batch and the indices of its samples to what is delivered."""


@dataclass(frozen=True)
class Pipeline:
    """The steps from groups of indices to batches."""

    tuning: Tuning
    transform: Transform | None
    target: torch.device | None
    pins: bool
    """True where tensors that transforms and Datasets make are copied to pinned memory."""
    draws: GlobalDraws

    def start(
        self, source: BatchSource, pool: BufferPool, groups: Iterable[BatchGroup]
    ) -> GroupStream:
        """Start the threads, and return the batches of each group."""
        if self.target is None:
            make = partial(_make_batches, source, pool, self.transform)
            return self._map(source, partial(_pin, make) if self.pins else make, groups)
        copies = DeviceCopies(self.target)
        if self.transform is None and isinstance(source, ColumnSource):
            source = replace(source, place=copies.place)
            make = partial(copies.make, partial(_make_batches, source, pool, None))
        else:
            make = partial(_make_batches, source, pool, self.transform)
            make = partial(copies.make_and_place, make)
        return copies.receive(self._map(source, make, groups))

    def _map(
        self, source: BatchSource, make: Callable[[Any], Any], groups: Iterable[BatchGroup]
    ) -> Generator[Any, None, None]:
        num_threads, ahead = self.tuning.num_threads, self.tuning.prefetch_factor
        if num_threads:
            # OpenMP's threads wait for each other, and one busy core holds up all of them
            make = partial(_make_single_threaded, make)
        if self.transform is not None or isinstance(source, DatasetSource):
            return map_seeded(make, groups, num_threads, ahead, self.draws)
        return map_ahead(make, groups, num_threads, ahead)


def _make_single_threaded(make: Callable[[Any], Any], item: Any) -> Any:
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
