"""Same-data check: compare the samples of a loader's epoch with the dataset's, by `check_data`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from torch.utils.data import default_collate

from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import StreamingDataset
from fastloop.core.traits import CollateTraits, traits_of
from fastloop.core.types import Invalid, Tree, Unsupported
from fastloop.data.dataset_batches import fetch_samples
from fastloop.data.delivered_indices import indices_to_deliver, indices_without_padding
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
"""Maximum number of samples that are read again to find out whether samples are random."""


def check_data(
    prepared: PreparedData,
    plan: Plan,
    batches: Iterable[Tree],
    epoch: int,
    *,
    same_data: bool = True,
    observe: Callable[[np.ndarray], object] | None = None,
) -> None:
    """Raise Invalid unless these batches have the dataset's samples that the plan asks for.

    Each sample is delivered exactly once, except for padding. Several ranks are checked together,
    and all raise the same error. A rank may be padded as by torch's DistributedSampler, which
    repeats samples so that all ranks have the same number. Raises Unsupported if a rank has no
    samples.

    batches: those of this rank in the epoch, on the device. same_data: False: compare only the
    number of samples, their dtypes and their shapes. observe: called with the (batch, 16) uint8
    hashes of each batch; None: nothing is called.
    """
    hashes = reference_hashes(prepared)
    expected = reference_digest(hashes, prepared.sample, indices_to_deliver(prepared, plan, epoch))
    ranks = _gather_digests(prepared, batches, expected.count, observe)
    actual = _merge_ranks(ranks)
    is_equal = (actual.count, actual.total) == (expected.count, expected.total)
    # A user's loader may pad ranks with other samples than the plan does. The padding, which is the
    # last sample of a rank, is then left out of the comparison.
    if not plan.loading.drop_last and not is_equal:
        indices = indices_without_padding(prepared, plan, epoch)
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
    """Digest of the samples that each rank delivers, by rank.

    All ranks raise Invalid if one of them fails. at_most: maximum number of samples of a rank.
    """
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
    """Digest of the samples of all ranks; raises Invalid if their dtypes or shapes differ."""
    filled = [rank for rank in ranks if rank.count]
    if differing := [rank for rank in filled if rank.leaves != filled[0].leaves]:
        raise Invalid(f"ranks differ: {describe_difference(filled[0], differing[0])}")
    count, total = sum(rank.count for rank in filled), sum(rank.total for rank in filled)
    return Digest(count, total % 2**128, filled[0].leaves if filled else ())


def _subtract_padding(
    ranks: list[Digest], actual: Digest, expected: Digest, hashes: np.ndarray | None
) -> Digest:
    """The digest without the samples with which a user's loader has padded the last ranks.

    Returns `actual` unchanged if there is no such padding. hashes: (n, 16) uint8 of the dataset's
    samples; None: the padding may be any samples.
    """
    # Index k belongs to rank k % world_size, so the last ranks may be one sample short. The padding
    # is then the last sample of each of these ranks, and must be a sample of the dataset.
    short = expected.count % len(ranks)
    ends = [rank.last for rank in ranks[short:]] if short else []
    added = np.frombuffer(bytes.fromhex("".join(ends)), np.uint8).reshape(-1, 16)
    foreign = hashes is not None and any(not (hashes == row).all(axis=1).any() for row in added)
    if actual.count - expected.count != len(added) or foreign:
        return actual
    total = (actual.total - hash_sum(added)) % 2**128
    return replace(actual, count=expected.count, total=total)


def check_placed(place: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    """Wrap a placement so that it raises Invalid if it fails for anything but tensors of one
    length."""

    # The batch is examined only if the placement fails. If the batch is the likely cause, leaves_of
    # raises Invalid; otherwise the error of the placement is raised again.
    def call(batch: Tree) -> Tree:
        try:
            return place(batch)
        except Exception:
            leaves_of(batch)
            raise

    return call


def _explain_randomness(prepared: PreparedData, plan: Plan) -> str:
    """The end of an error message if the data itself may be random; empty otherwise."""
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
