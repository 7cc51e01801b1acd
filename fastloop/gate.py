"""Same data or no ranking: what an epoch has to deliver, and whether it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import torch
from torch.utils.data import default_collate

from fastloop.digest import Digest, difference, digest, expected, leaves_of, sample_hashes
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

    Several ranks are judged by what they have delivered together, and all raise the same.
    """
    wanted = expected(reference_hashes(prepared), prepared.sample, kept(prepared, plan, epoch))
    got = _together(prepared, batches, wanted.count)
    if not same_data and got.count == wanted.count:
        got = replace(got, total=wanted.total)
    wrong = difference(wanted, got)
    if wrong and got.leaves == wanted.leaves and got.count == wanted.count:
        wrong += _why(prepared)
    if wrong:
        raise Invalid(wrong)


def _together(prepared: Prepared, batches: Iterable[Tree], at_most: int) -> Digest:
    """The digest of what all ranks deliver."""
    try:
        found = digest(batches, prepared.dataset.uint8_scale, prepared.sample, at_most)
    except Invalid as why:
        found = str(why)
    ranks = gathered(found)
    for one in ranks:
        if isinstance(one, str):
            raise Invalid(one)
    filled = [one for one in ranks if isinstance(one, Digest) and one.count]
    if differing := [one for one in filled if one.leaves != filled[0].leaves]:
        raise Invalid(f"ranks differ: {difference(filled[0], differing[0])}")
    count, total = sum(one.count for one in filled), sum(one.total for one in filled)
    return Digest(count, total % 2**128, filled[0].leaves if filled else ())


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
