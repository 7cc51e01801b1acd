"""Same data or no ranking: what an epoch has to deliver, and whether it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import default_collate

from fastloop.digest import Digest, difference, digest, expected, leaves_of, sample_hashes, sum_of
from fastloop.plans import epoch_indices, shard, whole_order
from fastloop.prepared import reference_hashes
from fastloop.protocols import Streamed
from fastloop.ragged import is_ragged, joined
from fastloop.ranks import gathered
from fastloop.types import Invalid, Plan, Prepared, Tree, Unsupported

REREAD_SAMPLES = 16


def check_data(
    prepared: Prepared, plan: Plan, batches: Iterable[Tree], epoch: int, same_data: bool = True
) -> None:
    """Raise Invalid unless these placed batches are the dataset's samples, each exactly once;
    without same_data unless they are as many of the same kind.

    Several ranks are judged by what they have delivered together, and all raise the same. A rank
    may be filled up to as many as the others have, as torch's DistributedSampler does; Unsupported
    where one has nothing to do.
    """
    hashes = reference_hashes(prepared)
    wanted = expected(hashes, prepared.sample, kept(prepared, plan, epoch))
    ranks = _of_ranks(prepared, batches, wanted.count)
    got = _together(ranks)
    if not plan.drop_last and (got.count, got.total) != (wanted.count, wanted.total):
        wanted = expected(hashes, prepared.sample, _asked_for(prepared, plan, epoch))
        got = _not_filled_up(ranks, got, wanted, hashes if same_data else None)
    if not same_data and got.count == wanted.count:
        got = replace(got, total=wanted.total)
    wrong = difference(wanted, got)
    if wrong and got.leaves == wanted.leaves and got.count == wanted.count:
        wrong += _why(prepared)
    if wrong:
        raise Invalid(wrong)
    if idle := [rank for rank, one in enumerate(ranks) if not one.count]:
        many = f"{got.count} samples are dealt out to {plan.world_size} ranks"
        raise Unsupported(f"rank {idle[0]} gets none: {many}")


def _of_ranks(prepared: Prepared, batches: Iterable[Tree], at_most: int) -> list[Digest]:
    """The digest of what each rank delivers."""
    try:
        found = digest(batches, prepared.dataset.uint8_scale, prepared.sample, at_most)
    except Invalid as why:
        found = str(why)
    ranks = gathered(found)
    for one in ranks:
        if isinstance(one, str):
            raise Invalid(one)
    return [one for one in ranks if isinstance(one, Digest)]


def _together(ranks: list[Digest]) -> Digest:
    filled = [one for one in ranks if one.count]
    if differing := [one for one in filled if one.leaves != filled[0].leaves]:
        raise Invalid(f"ranks differ: {difference(filled[0], differing[0])}")
    count, total = sum(one.count for one in filled), sum(one.total for one in filled)
    return Digest(count, total % 2**128, filled[0].leaves if filled else ())


def _not_filled_up(
    ranks: list[Digest], got: Digest, wanted: Digest, hashes: np.ndarray | None
) -> Digest:
    """What came, but for what a loader of one's own has filled the last ranks up with: the last
    sample of each, which is one of the dataset's, whose hashes these are, if they are known."""
    short = wanted.count % len(ranks)
    ends = [one.last for one in ranks[short:]] if short else []
    added = np.frombuffer(b"".join(ends), np.uint8).reshape(-1, 16)
    foreign = hashes is not None and any(not (hashes == one).all(axis=1).any() for one in added)
    if got.count - wanted.count != len(added) or foreign:
        return got
    return replace(got, count=wanted.count, total=(got.total - sum_of(added)) % 2**128)


def placing(place: Callable[[Tree], Tree]) -> Callable[[Tree], Tree]:
    """The same, which raises Invalid for a batch that can't be placed because it is no tensors."""

    def call(batch: Tree) -> Tree:
        try:
            return place(batch)
        except Exception:
            leaves_of(batch)
            raise

    return call


def kept(prepared: Prepared, plan: Plan, epoch: int) -> np.ndarray | None:
    """The indices that all ranks deliver in the epoch, and those again that fill a rank up to as
    many as the others have; None for each of them once."""
    order = whole_order(plan)
    is_even = order.length(prepared.num_samples) % plan.world_size == 0
    if order.complete and is_even and not plan.drop_last and not prepared.broken:
        return None
    return _whole_ones(prepared, plan, epoch, _places(prepared, plan))


def _asked_for(prepared: Prepared, plan: Plan, epoch: int) -> np.ndarray | None:
    """The indices of the epoch, whoever delivers them; None for each of them once."""
    order = whole_order(plan)
    if order.complete and not prepared.broken:
        return None
    return _whole_ones(prepared, plan, epoch, np.arange(order.length(prepared.num_samples)))


def num_delivered(prepared: Prepared, plan: Plan, epochs: int) -> int:
    """Samples that all ranks deliver in that many epochs; what fills a rank up is not counted."""
    if not plan.drop_last and not prepared.broken:
        return epochs * whole_order(plan).length(prepared.num_samples)
    places = np.unique(_places(prepared, plan))
    return sum(len(_whole_ones(prepared, plan, epoch, places)) for epoch in range(epochs))


def _whole_ones(prepared: Prepared, plan: Plan, epoch: int, places: np.ndarray) -> np.ndarray:
    """The indices at those places of the order, but for samples that are skipped."""
    indices = epoch_indices(whole_order(plan), prepared.num_samples, plan.seed, epoch)
    found = indices.numpy()[places]
    return found[~np.isin(found, [index for index, _ in prepared.broken])]


def _places(prepared: Prepared, plan: Plan) -> np.ndarray:
    """int64: the places in the order of all ranks that the ranks deliver, one after the other."""
    length = whole_order(plan).length(prepared.num_samples)
    whole = [torch.arange(length)]
    ranks = [shard(whole, length, rank, plan.world_size) for rank in range(plan.world_size)]
    found = [torch.cat([*pieces, whole[0][:0]]) for pieces in ranks]
    if not plan.drop_last:
        return torch.cat(found).numpy()
    if len(found[0]) < plan.batch_size:
        count = f"{len(found[0])} samples are less than batch_size={plan.batch_size}"
        raise Unsupported(f"drop_last=true: {count}")
    return torch.cat([one[: len(one) - len(one) % plan.batch_size] for one in found]).numpy()


def _why(prepared: Prepared) -> str:
    """What is behind it where the data itself is random; empty where it is not."""
    remedy = "same_data=false compares number and kind alone, without ranks"
    if isinstance(prepared.dataset, Streamed):
        return f": others came in its first epoch; where they are random, {remedy}"
    samples, hashes = prepared.dataset.open(), reference_hashes(prepared)
    collate = joined if is_ragged(prepared.dataset) else default_collate
    broken = {index for index, _ in prepared.broken}
    for index in range(min(REREAD_SAMPLES, prepared.num_samples)):
        if index in broken:
            continue
        again = sample_hashes(collate([samples[index]]), prepared.dataset.uint8_scale)
        if not np.array_equal(again[0], hashes[index]):
            return f": sample {index} is another one whenever it is read; {remedy}"
    return ""
