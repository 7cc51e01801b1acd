"""Divide an epoch into the batches of a plan: its indices (`index_batches`), or its samples if they
come as a stream (`group_samples`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from fastloop.core.plan import Plan
from fastloop.core.protocols import Order
from fastloop.core.torch_threads import iterate_single_threaded

T = TypeVar("T")


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


def num_batches(plan: Plan, num_samples: int) -> int:
    """Number of batches in an epoch."""
    length = plan.order.length(num_samples)
    size = plan.loading.batch_size
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
