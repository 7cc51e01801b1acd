"""The making of a loader's epochs: how many threads, and what one epoch leaves to the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fastloop.fastloader.batching import BatchGroup
from fastloop.fastloader.buffers import BufferPool
from fastloop.fastloader.columns.column import Tree
from fastloop.fastloader.dataset_source import BatchSource, DatasetSource
from fastloop.fastloader.epoch_plan import view_source
from fastloop.fastloader.order import LoaderOrder
from fastloop.fastloader.pipeline import GroupStream, Pipeline, Transform
from fastloop.fastloader.seeded_map import GlobalDraws
from fastloop.fastloader.source import SequentialSource
from fastloop.fastloader.tuning import Tuning, Workload, choose_tuning


@dataclass
class EpochStreams:
    """The threads' settings; the buffers of earlier epochs, and what has been found out in them."""

    tuning: Tuning
    target: torch.device | None
    """Where batches are delivered; None: the CPU."""
    pins: bool
    """True where they are delivered in pinned memory of the CPU."""
    draws: GlobalDraws = field(default_factory=GlobalDraws)
    pool: BufferPool | None = None

    def start(
        self,
        source: BatchSource,
        groups: Iterator[BatchGroup],
        transform: Transform | None,
    ) -> GroupStream:
        """Start the threads that prepare the groups' batches, where any are needed."""
        is_plain = transform is None
        if is_plain and isinstance(source, SequentialSource) and not source.gathered.columns:
            return (source.batches(group, None) for group in groups)
        pool = self._prepare_pool(source.row_nbytes)
        pipeline = Pipeline(self.tuning, transform, self.target, self.pins, self.draws)
        return pipeline.start(source, pool, groups)

    @property
    def is_plain(self) -> bool:
        """True where batches are delivered in the CPU's own memory, as it is."""
        return self.target is None and not self.pins

    def view(self, source: BatchSource, order: LoaderOrder) -> BatchSource:
        """The source with views of its memory in place of copies, where that is possible."""
        return source if self.target or self.pins else view_source(source, order)

    def without_buffers(self) -> EpochStreams:
        """A copy for another process, or for another loader."""
        return replace(self, pool=None, draws=replace(self.draws))

    def _prepare_pool(self, row_nbytes: Sequence[int]) -> BufferPool:
        """The buffers of earlier epochs, or new ones."""
        pool, is_copied = self.pool, self.target is not None and self.target.type == "cuda"
        if pool is None or not pool.is_usable(row_nbytes):
            pool = BufferPool(row_nbytes, is_copied or self.pins)
        num_copying = self.tuning.num_threads if is_copied else 0
        ahead = self.tuning.num_threads * self.tuning.prefetch_factor
        pool.set_capacity(ahead + 3 + num_copying)
        self.pool = pool
        return pool


def deliver_batches(
    stream: GroupStream, state: dict[str, Any], finish: Callable[[], None]
) -> Iterator[Tree]:
    """The batches of a stream, each counted in the state; closing it closes the stream.

    finish: called after the last one. A fork of this process gets a RuntimeError: it has none of
    the threads, and a lock of theirs may have been held when it was made.
    """
    return _deliver(stream, state, finish, os.getpid())


def _deliver(
    stream: GroupStream, state: dict[str, Any], finish: Callable[[], None], pid: int
) -> Iterator[Tree]:
    try:
        _refuse_fork(pid)
        for batches in stream:
            batch = None
            for batch in batches:
                state["delivered"] += 1
                yield batch
                _refuse_fork(pid)
            del batches, batch  # or their buffer would not be free before the next is made
        finish()
    finally:
        stream.close()


def _refuse_fork(pid: int) -> None:
    if os.getpid() != pid:
        problem = f"process {pid} has begun this epoch of FastLoader, and {os.getpid()} is its fork"
        raise RuntimeError(f"{problem}: iterate over the loader anew in the fork")


def tune(
    source: BatchSource,
    batch_size: int,
    requested: tuple[int | None, int | None],
    is_copied: bool,
    target: torch.device | None,
    is_native: bool,
) -> Tuning:
    """The tuning for the requested num_threads and prefetch_factor, None where either is chosen.

    is_copied: no transform is applied. is_native: the native core can make the batches.
    Raises ValueError for numbers that are too small.
    """
    names = "num_threads", "prefetch_factor"
    for name, value, least in zip(names, requested, (0, 1), strict=True):
        if value is not None and (not isinstance(value, int) or value < least):
            raise ValueError(f"{name}={value!r}: allowed is {least} or more")
    num_threads, prefetch_factor = requested
    if isinstance(source, DatasetSource) and not source.is_thread_safe and num_threads is None:
        num_threads = 1
    is_cheap = source.is_groupable and is_copied
    workload = Workload(
        row_nbytes=sum(source.row_nbytes),
        batch_size=batch_size,
        num_samples=len(source),
        is_cheap=is_cheap,
        is_native=is_cheap and is_native and target is None,
        is_grouped=is_cheap and target is not None,
    )
    return choose_tuning(workload, (num_threads, prefetch_factor))
