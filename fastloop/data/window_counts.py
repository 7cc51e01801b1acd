"""Check that a timed window had the samples and batches that were asked for, and count the samples
that an epoch has.

In each epoch, all ranks together deliver the samples that the plan asks for, with or without the
repeated samples that pad the ranks to one length. Unless the loader sets the sizes of its batches
itself, no batch is larger than batch_size, and a rank has at most samples // batch_size batches and
one more for each worker; if broken samples are skipped, a rank may have any number of batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastloop.core.order_parts import order_of_all_ranks
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.types import Invalid
from fastloop.data.delivered_indices import (
    indices_to_deliver,
    indices_without_padding,
    positions_of_ranks,
    readable_indices,
)
from fastloop.processes.rank_group import all_gather


@dataclass(frozen=True)
class EpochCounts:
    """Batches of one rank in an epoch."""

    samples: int
    batches: int
    largest: int
    """Number of samples of the largest batch."""


def check_counts(
    prepared: PreparedData, plan: Plan, sizes: Sequence[Sequence[int]], *, own_batches: bool
) -> None:
    """Raise Invalid unless each epoch of a window follows the rules of this module.

    sizes: number of samples of each batch of this rank, by epoch. own_batches: the loader sets the
    sizes of its batches itself. All ranks are checked together, and all raise the same error.
    """
    counts = [EpochCounts(sum(epoch), len(epoch), max(epoch, default=0)) for epoch in sizes]
    ranks = all_gather(counts, list[EpochCounts])
    lengths = None
    for epoch in range(len(sizes)):
        # Epochs differ in length only if samples are skipped: the order of the epoch decides
        # whether a rank repeats a skipped sample as padding, or drops it with the last batch.
        if lengths is None or prepared.broken:
            lengths = epoch_lengths(prepared, plan, epoch)
        in_epoch = [rank[epoch] for rank in ranks]
        total = sum(rank.samples for rank in in_epoch)
        if total not in lengths:
            raise Invalid(f"{total:,} samples in epoch {epoch} of its window, not {max(lengths):,}")
        if not own_batches:
            _check_sizes(prepared, plan, in_epoch, epoch)


def _check_sizes(
    prepared: PreparedData, plan: Plan, ranks: Sequence[EpochCounts], epoch: int
) -> None:
    """Raise Invalid for batches that are larger than batch_size, or too many."""
    size = plan.loading.batch_size
    largest = max(rank.largest for rank in ranks)
    if largest > size:
        raise Invalid(f"batch_size={size}: a batch of {largest:,} samples in epoch {epoch}")
    # If samples are skipped, every batch may be incomplete.
    if prepared.broken:
        return
    # Each worker of an IterableDataset has an incomplete last batch of its own.
    incomplete = max(1, plan.loading.num_workers)
    for rank in ranks:
        if rank.batches > rank.samples // size + incomplete:
            counts = f"{rank.batches:,} batches of {rank.samples:,} samples in epoch {epoch}"
            raise Invalid(f"batch_size={size}: {counts}")


def epoch_lengths(prepared: PreparedData, plan: Plan, epoch: int) -> set[int]:
    """Numbers of samples that all ranks together may deliver in an epoch: with and without the
    repeated samples that pad ranks to one length."""
    lists = [indices_to_deliver(prepared, plan, epoch)]
    if not plan.loading.drop_last:
        lists.append(indices_without_padding(prepared, plan, epoch))
    return {prepared.num_samples if indices is None else len(indices) for indices in lists}


def num_delivered(prepared: PreparedData, plan: Plan, epochs: int) -> int:
    """Number of samples that all ranks together deliver in this many epochs, without the padding of
    ranks."""
    if not plan.loading.drop_last and not prepared.broken:
        return epochs * order_of_all_ranks(plan).length(prepared.num_samples)
    positions = np.unique(positions_of_ranks(prepared, plan))
    return sum(len(readable_indices(prepared, plan, epoch, positions)) for epoch in range(epochs))
