"""Parts of an order: the share of a rank, and the beginning that `batches=` asks for."""

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


def rank_plan(plan: Plan, rank: int, world_size: int) -> Plan:
    """The plan for one of several ranks; unchanged for a single process."""
    if world_size == 1:
        return plan
    # Divide the order of all ranks, not the share of a plan that has been divided already. An order
    # that depends on the number of ranks, such as one of blocks, has to know it first.
    order = order_of_all_ranks(plan)
    if isinstance(order, WorldSizeAwareOrder):
        order = order.for_world_size(world_size)
    share = OrderShard(order=order, rank=rank, world_size=world_size)
    return replace(plan, order=share, rank=rank, world_size=world_size)


def order_of_all_ranks(plan: Plan) -> Order:
    """The order of all ranks together; with `batches=` it is an OrderPrefix."""
    return plan.order.order if isinstance(plan.order, OrderShard) else plan.order


def without_prefix(order: Order) -> Order:
    """The order of the whole epoch; an OrderPrefix is its beginning."""
    return order.order if isinstance(order, OrderPrefix) else order


def is_shuffled(plan: Plan) -> bool:
    """True for order=random, which a library may replace by its own shuffle."""
    return isinstance(without_prefix(order_of_all_ranks(plan)), RandpermOrder)
