"""The first samples of each epoch: an order cut short, for datasets with too long epochs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from fastloop.core.protocols import Order, WorldSizeAwareOrder


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
