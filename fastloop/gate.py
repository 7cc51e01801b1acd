"""Same data or no ranking: what an epoch has to deliver, and whether it did."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fastloop.digest import difference, digest, expected
from fastloop.plans import epoch_indices
from fastloop.prepared import reference_hashes
from fastloop.types import Invalid, Plan, Prepared, Tree, Unsupported


def check_data(prepared: Prepared, plan: Plan, batches: Iterable[Tree], epoch: int) -> None:
    """Raise Invalid unless these placed batches are the dataset's samples, each exactly once."""
    wanted = expected(reference_hashes(prepared), prepared.sample, kept(prepared, plan, epoch))
    wrong = difference(wanted, digest(batches, prepared.dataset.uint8_scale, prepared.sample))
    if wrong:
        raise Invalid(wrong)


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
