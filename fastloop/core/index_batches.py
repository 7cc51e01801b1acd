"""The indices of an epoch, all at once or batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Sampler

from fastloop.core.plan import Plan
from fastloop.core.protocols import Order
from fastloop.core.torch_threads import iterate_single_threaded


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
