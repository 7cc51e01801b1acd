"""Parts of an epoch's order: the share of one rank, and the first indices, for `batches=`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fastloop.core.plan import Plan
from fastloop.core.protocols import Order, RandpermOrder, WorldSizeAwareOrder
from fastloop.core.sharding import shard


@dataclass(frozen=True, kw_only=True)
class OrderShard:
    """The share of one rank in an order: every `world_size`-th index, see core/sharding.py."""

    order: Order
    """The order of all ranks together."""
    rank: int
    """Number of the rank, from 0."""
    world_size: int
    """Number of ranks."""
    complete: ClassVar[bool] = False

    def length(self, num_samples: int) -> int:
        """Number of indices of the rank, which is equal for all ranks."""
        return -(-self.order.length(num_samples) // self.world_size)

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """The rank's int64 indices of an epoch, piece by piece."""
        pieces = self.order.pieces(num_samples, seed, epoch)
        return shard(pieces, self.rank, self.world_size)


@dataclass(frozen=True, kw_only=True)
class OrderPrefix:
    """The first `count * world_size` indices of an order, which have yet to be divided."""

    order: Order
    """The order of whole epochs, of all ranks together."""
    count: int
    """Number of indices for each rank."""
    world_size: int = 1
    """Number of ranks among which the indices will be divided."""
    complete: bool = False

    def length(self, num_samples: int) -> int:
        """Number of indices for all ranks together; a short order has fewer than asked for."""
        return min(self.count * self.world_size, self.order.length(num_samples))

    def pieces(self, num_samples: int, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        """Yield the int64 indices piece by piece, and read no further pieces of the order."""
        left = self.length(num_samples)
        for piece in self.order.pieces(num_samples, seed, epoch):
            yield piece[:left]
            left -= min(left, len(piece))
            if not left:
                return

    def for_world_size(self, world_size: int) -> OrderPrefix:
        """A prefix with `count` indices for each of `world_size` ranks."""
        order = self.order
        if isinstance(order, WorldSizeAwareOrder):
            order = order.for_world_size(world_size)
        return replace(self, order=order, world_size=world_size)


def rank_plan(plan: Plan, rank: int, world_size: int) -> Plan:
    """The plan with the share of one rank in its order; the plan itself if `world_size` is 1."""
    if world_size == 1:
        return plan
    # The plan may have been divided already, so the order of all ranks is divided, not the plan's
    # share. An order that depends on the number of ranks, such as order=buckets, is told it first.
    order = order_of_all_ranks(plan)
    if isinstance(order, WorldSizeAwareOrder):
        order = order.for_world_size(world_size)
    share = OrderShard(order=order, rank=rank, world_size=world_size)
    return replace(plan, order=share, rank=rank, world_size=world_size)


def order_of_all_ranks(plan: Plan) -> Order:
    """The plan's order before it is divided among ranks; an OrderPrefix if `batches=` is set."""
    return plan.order.order if isinstance(plan.order, OrderShard) else plan.order


def without_prefix(order: Order) -> Order:
    """The order of the whole epoch, of which an OrderPrefix is the beginning."""
    return order.order if isinstance(order, OrderPrefix) else order


def is_shuffled(plan: Plan) -> bool:
    """True if the plan has order=random; some libraries then shuffle by themselves."""
    return isinstance(without_prefix(order_of_all_ranks(plan)), RandpermOrder)
