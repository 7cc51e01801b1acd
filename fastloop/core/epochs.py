"""Helpers for loaders: indices of a plan's epochs, orders cut short, and the shards of ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch.utils.data import Sampler

from fastloop.core.plan import Plan
from fastloop.core.protocols import Order, WorldSizeAwareOrder
from fastloop.core.sharding import shard
from fastloop.core.torch_threads import iterate_single_threaded
from fastloop.core.types import Epochs, Tree


def epoch_indices(order: Order, num_samples: int, seed: int, epoch: int) -> torch.Tensor:
    """All indices of an epoch, as one int64 tensor."""
    pieces = list(iterate_single_threaded(order.pieces(num_samples, seed, epoch)))
    return torch.cat(pieces) if len(pieces) != 1 else pieces[0]


def index_batches(plan: Plan, num_samples: int, epoch: int) -> Iterator[torch.Tensor]:
    """Yield the int64 indices of each batch; memory is bounded by a piece of the order."""
    # A piece need not be a multiple of the batch size: its last indices wait for the next piece.
    remainder = torch.empty(0, dtype=torch.int64)
    for piece in iterate_single_threaded(plan.order.pieces(num_samples, plan.seed, epoch)):
        indices = torch.cat([remainder, piece]) if len(remainder) else piece
        whole = len(indices) - len(indices) % plan.loading.batch_size
        if whole:
            yield from indices[:whole].split(plan.loading.batch_size)
        remainder = indices[whole:]
    if len(remainder) and not plan.loading.drop_last:
        yield remainder


def num_batches(plan: Plan, num_samples: int) -> int:
    """Number of batches in an epoch."""
    length, size = plan.order.length(num_samples), plan.loading.batch_size
    # -(-a // b) rounds up.
    return length // size if plan.loading.drop_last else -(-length // size)


@dataclass
class IndexBatches(Sampler[Any]):
    """Sampler of whole batches of indices, for a DataLoader with batch_size=None (pytorch#4959).

    `epoch` selects the epoch. In this process the batches are int64 tensors, for workers they are
    numpy arrays.
    """

    plan: Plan
    num_samples: int
    epoch: int = 0

    def __len__(self) -> int:
        return num_batches(self.plan, self.num_samples)

    def __iter__(self) -> Iterator[Any]:
        # A queue pickles numpy arrays. A tensor would be passed in shared memory, by a thread of
        # torch that never ends.
        batches = index_batches(self.plan, self.num_samples, self.epoch)
        return (batch.numpy() for batch in batches) if self.plan.loading.num_workers else batches


@dataclass(frozen=True, kw_only=True)
class OrderShard:
    """The share of one rank in an order."""

    order: Order
    rank: int
    world_size: int
    complete: ClassVar[bool] = False

    def length(self, num_samples: int) -> int:
        """Number of indices of the rank; equal for all ranks, see core/sharding.py."""
        return -(-self.order.length(num_samples) // self.world_size)

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """The int64 indices of the rank, piece by piece."""
        pieces = self.order.pieces(num_samples, seed, epoch)
        return shard(pieces, self.rank, self.world_size)


def rank_plan(plan: Plan, rank: int, world_size: int) -> Plan:
    """The plan for one of several ranks; unchanged for a single process."""
    if world_size == 1:
        return plan
    # Divide the whole order again, not the share of a plan that has been divided already. An order
    # that depends on the number of ranks, such as one of blocks, has to know it first.
    whole = whole_order(plan)
    if isinstance(whole, WorldSizeAwareOrder):
        whole = whole.for_world_size(world_size)
    order = OrderShard(order=whole, rank=rank, world_size=world_size)
    return replace(plan, order=order, rank=rank, world_size=world_size)


def whole_order(plan: Plan) -> Order:
    """The order of all ranks together."""
    return plan.order.order if isinstance(plan.order, OrderShard) else plan.order


Batches = Generator[Tree, None, None]


@contextmanager
def close_on_exit(batches: Callable[[int], Batches]) -> Iterator[Epochs]:
    """Epochs as generators, which are closed on leaving the context, even if still referenced."""
    # The references are weak: a generator that nobody holds any more is closed when it is freed,
    # and long runs must not keep one for each epoch.
    started: list[weakref.ref[Any]] = []

    def epochs(epoch: int) -> Batches:
        started[:] = [reference for reference in started if reference() is not None]
        generator = batches(epoch)
        started.append(weakref.ref(generator))
        return generator

    try:
        yield epochs
    finally:
        for reference in started:
            generator = reference()
            if generator is not None:
                generator.close()


@dataclass(frozen=True, kw_only=True)
class OrderPrefix:
    """The first `count` indices of an order for each rank, before they are divided among ranks."""

    order: Order
    count: int
    """Number of indices for each rank."""
    world_size: int = 1
    """Number of ranks among which the indices will be divided."""
    complete: bool = False

    def length(self, num_samples: int) -> int:
        """The number of indices for all ranks together; a short order has fewer than asked for."""
        return min(self.count * self.world_size, self.order.length(num_samples))

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """Yield the int64 indices piece by piece; the order is read no further than needed."""
        left = self.length(num_samples)
        for piece in self.order.pieces(num_samples, seed, epoch):
            yield piece[:left]
            left -= min(left, len(piece))
            if not left:
                return

    def for_world_size(self, world_size: int) -> OrderPrefix:
        """The first indices of the order for that number of ranks."""
        order = self.order
        if isinstance(order, WorldSizeAwareOrder):
            order = order.for_world_size(world_size)
        return replace(self, order=order, world_size=world_size)


def uncut_order(order: Order) -> Order:
    """The order of a whole epoch."""
    return order.order if isinstance(order, OrderPrefix) else order
