"""Counts of the batches of a timed window: as many samples as asked, in batches of the right
size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastloop.core.plan import Plan, PreparedData
from fastloop.core.types import Invalid
from fastloop.data.same_data import epoch_lengths
from fastloop.processes.rank_group import all_gather


@dataclass(frozen=True)
class EpochCounts:
    """Batches of one rank in an epoch."""

    samples: int
    batches: int
    largest: int


def check_counts(
    prepared: PreparedData, plan: Plan, sizes: Sequence[Sequence[int]], own_batches: bool
) -> None:
    """Raise Invalid unless each epoch of a window has the samples and batches that were asked for.

    sizes: number of samples of each batch of this rank, by epoch. own_batches: the loader sets the
    sizes of its batches itself. All ranks are checked together, and all raise the same error.
    """
    counts = [EpochCounts(sum(epoch), len(epoch), max(epoch, default=0)) for epoch in sizes]
    ranks = all_gather(counts, list[EpochCounts])
    lengths = None
    for epoch in range(len(sizes)):
        # Epochs differ in length only if samples are skipped: which of them a rank would repeat as
        # padding, or drop with the last batch, depends on the epoch's order.
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
    # if samples are skipped, every batch may be incomplete
    if prepared.broken:
        return
    # of an IterableDataset, each worker has an incomplete last batch of its own
    incomplete = max(1, plan.loading.num_workers)
    for rank in ranks:
        if rank.batches > rank.samples // size + incomplete:
            counts = f"{rank.batches:,} batches of {rank.samples:,} samples in epoch {epoch}"
            raise Invalid(f"batch_size={size}: {counts}")
