"""Same-data check: `check_data` compares the samples that a loader delivers in an epoch with the
dataset's samples, and `check_counts` the numbers of samples and batches in the timed windows with
those that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils.data import default_collate

from fastloop.core.index_batches import epoch_indices
from fastloop.core.order_parts import order_of_all_ranks
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import StreamingDataset
from fastloop.core.sharding import shard
from fastloop.core.traits import CollateTraits, traits_of
from fastloop.core.types import Invalid, Tree, Unsupported
from fastloop.data.dataset_batches import fetch_samples
from fastloop.data.digest import (
    Digest,
    describe_difference,
    digest,
    hash_sum,
    leaves_of,
    reference_digest,
    sample_hashes,
)
from fastloop.data.ragged import collate_ragged, is_ragged
from fastloop.data.random_samples import SeededDataset
from fastloop.data.reference import reference_hashes
from fastloop.processes.rank_group import all_gather

REREAD_SAMPLES = 16
"""Samples that are read again to find out whether they are random."""


def check_data(
    prepared: PreparedData,
    plan: Plan,
    batches: Iterable[Tree],
    epoch: int,
    *,
    same_data: bool = True,
    observe: Callable[[np.ndarray], object] | None = None,
) -> None:
    """Raise Invalid unless these placed batches are the dataset's samples, each exactly once.

    Several ranks are checked together, and all raise the same error. A rank may repeat samples to
    reach the number of samples of the others, as with torch's DistributedSampler. Raises
    Unsupported if a rank has no samples.

    same_data: False: compare only the number of samples and their dtypes and shapes.
    observe: called with the (batch, 16) uint8 hashes of each batch.
    """
    hashes = reference_hashes(prepared)
    expected = reference_digest(hashes, prepared.sample, indices_to_deliver(prepared, plan, epoch))
    ranks = _gather_digests(prepared, batches, expected.count, observe)
    actual = _merge_ranks(ranks)
    is_equal = (actual.count, actual.total) == (expected.count, expected.total)
    # A user's loader may pad ranks with other samples than the plan does. Without the padding,
    # which is the last sample of a rank, the epoch must be the order's samples.
    if not plan.loading.drop_last and not is_equal:
        indices = _order_indices(prepared, plan, epoch)
        expected = reference_digest(hashes, prepared.sample, indices)
        actual = _subtract_padding(ranks, actual, expected, hashes if same_data else None)
    if not same_data and actual.count == expected.count:
        actual = replace(actual, total=expected.total)
    difference = describe_difference(expected, actual)
    if difference and (actual.leaves, actual.count) == (expected.leaves, expected.count):
        difference += _explain_randomness(prepared, plan)
    if difference:
        raise Invalid(difference)
    if idle := [rank for rank, delivered in enumerate(ranks) if not delivered.count]:
        split = f"{actual.count} samples are divided among {plan.world_size} ranks"
        raise Unsupported(f"rank {idle[0]} gets no samples: {split}")


def _gather_digests(
    prepared: PreparedData,
    batches: Iterable[Tree],
    at_most: int,
    observe: Callable[[np.ndarray], object] | None,
) -> list[Digest]:
    """Digest of the samples delivered by each rank; all ranks raise Invalid if one of them
    fails."""
    answer = None
    error = ""
    try:
        answer = digest(batches, prepared.dataset.uint8_scale, prepared.sample, at_most, observe)
    except Invalid as reason:
        error = str(reason)
    answers = all_gather((answer, error), tuple[Digest | None, str])
    if errors := [error for _, error in answers if error]:
        raise Invalid(errors[0])
    return [answer for answer, _ in answers if answer]


def _merge_ranks(ranks: list[Digest]) -> Digest:
    filled = [rank for rank in ranks if rank.count]
    if differing := [rank for rank in filled if rank.leaves != filled[0].leaves]:
        raise Invalid(f"ranks differ: {describe_difference(filled[0], differing[0])}")
    count, total = sum(rank.count for rank in filled), sum(rank.total for rank in filled)
    return Digest(count, total % 2**128, filled[0].leaves if filled else ())


def _subtract_padding(
    ranks: list[Digest], actual: Digest, expected: Digest, hashes: np.ndarray | None
) -> Digest:
    """The digest without the samples with which a user's loader has padded the last ranks.

    hashes: (n, 16) uint8 of the dataset's samples; None: unknown.
    """
    # Index k is dealt to rank k % world_size, so the last ranks may be one sample short. The
    # padding is the last sample of each of these ranks, and must be a sample of the dataset.
    short = expected.count % len(ranks)
    ends = [rank.last for rank in ranks[short:]] if short else []
    added = np.frombuffer(bytes.fromhex("".join(ends)), np.uint8).reshape(-1, 16)
    foreign = hashes is not None and any(not (hashes == row).all(axis=1).any() for row in added)
    if actual.count - expected.count != len(added) or foreign:
        return actual
    total = (actual.total - hash_sum(added)) % 2**128
    return replace(actual, count=expected.count, total=total)


def check_placed(place: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    """Wrap a placement so that it raises Invalid for a batch without tensors of one length."""

    # The batch is looked at only if the placement fails: leaves_of then names the likely cause,
    # and any other error stays as it is.
    def call(batch: Tree) -> Tree:
        try:
            return place(batch)
        except Exception:
            leaves_of(batch)
            raise

    return call


def indices_to_deliver(prepared: PreparedData, plan: Plan, epoch: int) -> np.ndarray | None:
    """Indices that all ranks together deliver in an epoch; None: each index once.

    Indices that are repeated to give all ranks the same number of samples are included.
    """
    # None spares the memory and time of a permutation that would be summed up anyway.
    order = order_of_all_ranks(plan)
    is_even = order.length(prepared.num_samples) % plan.world_size == 0
    if order.complete and is_even and not plan.loading.drop_last and not prepared.broken:
        return None
    return _readable_indices(prepared, plan, epoch, _positions_of_ranks(prepared, plan))


def epoch_lengths(prepared: PreparedData, plan: Plan, epoch: int) -> set[int]:
    """Numbers of samples that all ranks together may deliver in an epoch: with and without the
    repeated samples that pad ranks to one length."""
    lists = [indices_to_deliver(prepared, plan, epoch)]
    if not plan.loading.drop_last:
        lists.append(_order_indices(prepared, plan, epoch))
    return {prepared.num_samples if indices is None else len(indices) for indices in lists}


def _order_indices(prepared: PreparedData, plan: Plan, epoch: int) -> np.ndarray | None:
    """Indices of the epoch without padding of ranks; None: each index once."""
    order = order_of_all_ranks(plan)
    if order.complete and not prepared.broken:
        return None
    return _readable_indices(prepared, plan, epoch, np.arange(order.length(prepared.num_samples)))


def num_delivered(prepared: PreparedData, plan: Plan, epochs: int) -> int:
    """Number of samples that all ranks together deliver in this many epochs, without the padding of
    ranks."""
    if not plan.loading.drop_last and not prepared.broken:
        return epochs * order_of_all_ranks(plan).length(prepared.num_samples)
    positions = np.unique(_positions_of_ranks(prepared, plan))
    return sum(len(_readable_indices(prepared, plan, epoch, positions)) for epoch in range(epochs))


def _readable_indices(
    prepared: PreparedData, plan: Plan, epoch: int, positions: np.ndarray
) -> np.ndarray:
    """Indices at these positions of the order, without the skipped samples."""
    indices = epoch_indices(order_of_all_ranks(plan), prepared.num_samples, plan.seed, epoch)
    selected = indices.numpy()[positions]
    return selected[~np.isin(selected, [index for index, _ in prepared.broken])]


def _positions_of_ranks(prepared: PreparedData, plan: Plan) -> np.ndarray:
    """Positions, int64, in the order of all ranks that are delivered, rank by rank."""
    # With drop_last, each rank drops the rest of its own share.
    length = order_of_all_ranks(plan).length(prepared.num_samples)
    whole = [torch.arange(length)]
    ranks = [shard(whole, rank, plan.world_size) for rank in range(plan.world_size)]
    shards = [torch.cat([*pieces, whole[0][:0]]) for pieces in ranks]
    if not plan.loading.drop_last:
        return torch.cat(shards).numpy()
    size = plan.loading.batch_size
    if len(shards[0]) < size:
        count = len(shards[0])
        raise Unsupported(f"drop_last=true: {count} samples are fewer than batch_size={size}")
    return torch.cat(
        [positions[: len(positions) - len(positions) % size] for positions in shards]
    ).numpy()


def _explain_randomness(prepared: PreparedData, plan: Plan) -> str:
    """Explanation of a difference if the data itself is random; empty if it is not."""
    remedy = "same_data=false compares only counts, dtypes and shapes, and gives no rank"
    if isinstance(prepared.dataset, StreamingDataset):
        return f": its first epoch delivered other samples; if they are random, {remedy}"
    samples = prepared.dataset.open()
    hashes = reference_hashes(prepared)
    collate = collate_ragged if is_ragged(prepared.dataset) else default_collate
    by_user = plan.collate and traits_of(CollateTraits, plan.collate).defines_samples
    if plan.collate and by_user:
        collate = plan.collate.collate
    broken = {index for index, _ in prepared.broken}
    for index in range(min(REREAD_SAMPLES, prepared.num_samples)):
        if index in broken:
            continue
        fetched = fetch_samples(samples, [index]) if by_user else [samples[index]]
        again = sample_hashes(collate(fetched), prepared.dataset.uint8_scale)
        if not np.array_equal(again[0], hashes[index]):
            return f": sample {index} differs every time it is read; {remedy}"
    if isinstance(prepared.dataset, SeededDataset):
        return f": random samples are compared with generators seeded by their index; {remedy}"
    return ""


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
    """Raise Invalid unless each epoch of a window has the samples and batches that were asked for.

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
