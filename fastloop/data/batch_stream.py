"""Streams: loaders that read shards from their beginning to their end, and shuffle the samples
of a buffer by themselves."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import IterableDataset

from fastloop.core.open_iterators import OpenIterators
from fastloop.core.order_parts import OrderPrefix, order_of_all_ranks
from fastloop.core.plan import Plan
from fastloop.core.types import Batches, Tree, Unsupported, name_of

T = TypeVar("T")


def check_stream(loader: str, plan: Plan, world_size: int) -> None:
    """Raise Unsupported for a plan that a loader of a stream can't follow.

    loader: its name.
    world_size: number of ranks that will share the plan.
    """
    order, loading = order_of_all_ranks(plan), plan.loading
    if isinstance(order, OrderPrefix):
        raise Unsupported(f"batches: loader={loader} shuffles the samples itself")
    if name_of(order) not in ("random", "sequential"):
        reason = f"loader={loader} reads the stored order, or shuffles it itself"
        raise Unsupported(f"order={name_of(order)}: {reason}")
    readers = world_size * max(1, loading.num_workers)
    if readers == 1:
        return
    setting = _setting_of_readers(plan, world_size)
    if name_of(order) == "sequential":
        raise Unsupported(f"{setting}: order=sequential of loader={loader} needs a single reader")
    if loading.drop_last:
        reason = f"each of {readers} readers of loader={loader} would drop samples of its own"
        raise Unsupported(f"{setting} with drop_last=true: {reason}")


def check_shards(plan: Plan, num_shards: int) -> None:
    """Raise Unsupported if there are so few shards that a worker of some rank would get none."""
    readers = plan.world_size * max(1, plan.loading.num_workers)
    if readers > num_shards:
        setting = _setting_of_readers(plan, plan.world_size)
        raise Unsupported(f"{setting}: {readers} readers of {num_shards} shards; see num_shards")


def _setting_of_readers(plan: Plan, world_size: int) -> str:
    """The setting by which several processes read the stream."""
    return f"num_workers={plan.loading.num_workers}" if world_size == 1 else "launcher=torchrun"


def group_samples(samples: Iterable[T], plan: Plan) -> Iterator[list[T]]:
    """The samples in lists of batch_size; with drop_last, without a shorter list at the end."""
    batch: list[T] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == plan.loading.batch_size:
            yield batch
            batch = []
    if batch and not plan.loading.drop_last:
        yield batch


def stack_leaves(structure: Any, samples: Iterable[Sequence[torch.Tensor]]) -> Tree:
    """The batch of samples, of which each is given by its leaves. structure: of a sample's tree."""
    leaves = [torch.stack(leaf) for leaf in zip(*samples, strict=True)]
    return pytree.tree_unflatten(leaves, structure)


class BatchStream(IterableDataset):
    """Whole batches for a DataLoader with batch_size=None.

    `epoch` selects the epoch, also for workers that have started already.
    """

    def __init__(self, batches: Callable[[int], Batches], plan: Plan) -> None:
        self._batches = batches
        context = multiprocessing.get_context(plan.loading.multiprocessing_context)
        # Shared memory stays open until this process ends. Only workers need it.
        self._shared: Any = context.RawValue("q", 0) if plan.loading.num_workers else None
        self._own = 0
        self._started = OpenIterators()

    @property
    def epoch(self) -> int:
        """The number of the epoch that the next iterator has."""
        return self._own if self._shared is None else self._shared.value

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        if self._shared is None:
            self._own = epoch
        else:
            self._shared.value = epoch

    def __iter__(self) -> Iterator[Tree]:
        return self._started.start(self._batches(self.epoch))

    def close(self) -> None:
        """Close the shards that iterators of this process have opened."""
        self._started.close()
