"""Same data or no ranking: what an epoch has to deliver, and whether it did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from torch.utils.data import default_collate

from fastloop.digest import difference, digest, expected, leaves_of, sample_hashes
from fastloop.plans import epoch_indices
from fastloop.prepared import reference_hashes
from fastloop.protocols import Streamed
from fastloop.ragged import is_ragged, joined
from fastloop.types import Invalid, Plan, Prepared, Tree, Unsupported

REREAD_SAMPLES = 16


def check_data(
    prepared: Prepared, plan: Plan, batches: Iterable[Tree], epoch: int, same_data: bool = True
) -> None:
    """Raise Invalid unless these placed batches are the dataset's samples, each exactly once;
    without same_data unless they are as many of the same kind."""
    wanted = expected(reference_hashes(prepared), prepared.sample, kept(prepared, plan, epoch))
    got = digest(batches, prepared.dataset.uint8_scale, prepared.sample, at_most=wanted.count)
    if not same_data and got.count == wanted.count:
        got = replace(got, total=wanted.total)
    wrong = difference(wanted, got)
    if wrong and got.leaves == wanted.leaves and got.count == wanted.count:
        wrong += _why(prepared)
    if wrong:
        raise Invalid(wrong)


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
    """The indices that the epoch delivers; None for each of them once."""
    if plan.order.complete and not plan.drop_last and not prepared.broken:
        return None
    length = plan.order.length(prepared.num_samples)
    if plan.drop_last and length < plan.batch_size:
        count = f"{length} samples are less than batch_size={plan.batch_size}"
        raise Unsupported(f"drop_last=true: {count}")
    indices = epoch_indices(plan.order, prepared.num_samples, plan.seed, epoch).numpy()
    if plan.drop_last:
        indices = indices[: length - length % plan.batch_size]
    return indices[~np.isin(indices, [index for index, _ in prepared.broken])]


def num_delivered(prepared: Prepared, plan: Plan, epochs: int) -> int:
    """Samples in that many epochs."""
    found = (kept(prepared, plan, epoch) for epoch in range(epochs))
    return sum(prepared.num_samples if one is None else len(one) for one in found)


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
