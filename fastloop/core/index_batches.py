"""Divide the indices or the samples of an epoch into the batches of a `Plan`.

`index_batches` divides indices. `group_samples` divides samples that come as a stream.
"""

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
    """Yield the indices of each batch, as an int64 tensor.

    num_samples: number of samples in the dataset. The order yields its indices in pieces. Only one
    piece, and less than a batch of indices from the piece before, are in memory.
    """
    # The length of a piece need not be a multiple of the batch size. The last indices of a piece
    # then wait for the next piece.
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
    """Yield lists of batch_size samples.

    The last list may be shorter; drop_last leaves out a shorter list.
    """
    batch: list[T] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == plan.loading.batch_size:
            yield batch
            batch = []
    if batch and not plan.loading.drop_last:
        yield batch


def num_batches(plan: Plan, num_samples: int) -> int:
    """Number of batches in an epoch; `num_samples` is the number of samples in the dataset."""
    length = plan.order.length(num_samples)
    size = plan.loading.batch_size
    # -(-a // b) rounds up.
    return length // size if plan.loading.drop_last else -(-length // size)


@dataclass
class IndexBatches(Sampler[Any]):
    """Sampler that yields the indices of whole batches, for a DataLoader with batch_size=None.

    pytorch#4959 proposes such a sampler. The batches are int64 tensors or, if the DataLoader has
    workers, int64 arrays of numpy.
    """

    plan: Plan
    num_samples: int
    """Number of samples in the dataset."""
    epoch: int = 0
    """Number of the epoch that the next iteration yields."""

    def __len__(self) -> int:
        return num_batches(self.plan, self.num_samples)

    def __iter__(self) -> Iterator[Any]:
        # Workers get their indices from a queue, which pickles numpy arrays. For a tensor it would
        # use shared memory, which needs a thread of torch that never ends.
        batches = index_batches(self.plan, self.num_samples, self.epoch)
        return (batch.numpy() for batch in batches) if self.plan.loading.num_workers else batches
