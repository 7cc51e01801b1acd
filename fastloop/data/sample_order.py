"""Check by the hashes of samples whether a loader has delivered them in the plan's order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from fastloop.core.index_batches import epoch_indices
from fastloop.core.order_parts import order_of_all_ranks, without_prefix
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import RandpermOrder
from fastloop.core.types import Invalid, name_of
from fastloop.data.reference import reference_hashes

FEWEST_SAMPLES = 8
"""Shorter epochs may have the same order twice by chance: 8 samples have 40,320 orders."""

Places = Mapping[int, np.ndarray]
"""Number of an epoch -> int64 stored place of each delivered sample, in the order of delivery."""


def places_in_store(hashes: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Place of each sample in the dataset, int64; -1 for a sample that is not in it.

    Equal samples all have the place of the first. hashes: (m, 16) uint8 of delivered samples.
    reference: (n, 16) uint8 of the dataset's samples.
    """
    # 64 of 128 bits are enough: two of a million samples are equal in them with a probability of
    # 3e-8. The sort is stable, and searchsorted returns the first of equal words.
    words = np.ascontiguousarray(reference).view("<u8")[:, 0]
    order = np.argsort(words, kind="stable")
    wanted = np.ascontiguousarray(hashes).view("<u8")[:, 0]
    found = order[np.minimum(np.searchsorted(words[order], wanted), len(order) - 1)]
    return np.where(words[found] == wanted, found, -1)


def check_order(prepared: PreparedData, plan: Plan, places: Places) -> None:
    """Raise Invalid unless these epochs of this rank have the plan's order.

    order=random is also satisfied by any other shuffle that is new in every epoch.
    """
    order = without_prefix(order_of_all_ranks(plan))
    expected = _PlannedPlaces(prepared, plan)
    wrong = [epoch for epoch in places if not expected.equals(places[epoch], epoch)]
    if not wrong:
        return
    name = f"order={name_of(order)}"
    if not isinstance(order, RandpermOrder):
        raise Invalid(f"{name}: {expected.describe_difference(places[wrong[0]], wrong[0])}")
    # Only with order=random may a loader shuffle by itself: any shuffled order will do.
    shuffled = {epoch: delivered for epoch, delivered in places.items() if _can_judge(delivered)}
    for epoch, delivered in shuffled.items():
        if np.array_equal(delivered, np.sort(delivered)):
            remedy = "order=sequential asks for that"
            raise Invalid(f"{name}: epoch {epoch} is in the order of the store; {remedy}")
    for epoch, other in itertools.combinations(shuffled, 2):
        if np.array_equal(shuffled[epoch], shuffled[other]):
            raise Invalid(f"{name}: epochs {epoch} and {other} are in the same order")


class _PlannedPlaces:
    """The place in the store of each sample of an epoch, in the plan's order; `places_in_store`
    finds the same places for delivered samples."""

    def __init__(self, prepared: PreparedData, plan: Plan) -> None:
        reference = reference_hashes(prepared)
        # Equal samples can't be told apart: each of them has the place of the first.
        self._first = places_in_store(reference, reference)
        self._plan = plan
        self._broken = [index for index, _ in prepared.broken]

    def equals(self, delivered: np.ndarray, epoch: int) -> bool:
        """True if these places are the plan's, which drop_last may cut short."""
        planned = self._of_epoch(epoch)
        return np.array_equal(delivered, planned[: len(delivered)])

    def describe_difference(self, delivered: np.ndarray, epoch: int) -> str:
        """The first place at which the epoch differs from the plan's, in words."""
        planned = self._of_epoch(epoch)
        count = min(len(planned), len(delivered))
        differing = np.flatnonzero(planned[:count] != delivered[:count])
        if not len(differing):
            return f"epoch {epoch} delivers {len(delivered)} samples, not {len(planned)}"
        at = int(differing[0])
        return f"epoch {epoch} delivers sample {delivered[at]} at {at}, not {planned[at]}"

    def _of_epoch(self, epoch: int) -> np.ndarray:
        plan = self._plan
        indices = epoch_indices(plan.order, len(self._first), plan.seed, epoch).numpy()
        return self._first[indices[~np.isin(indices, self._broken)]]


def _can_judge(delivered: np.ndarray) -> bool:
    """False if few distinct samples make two equal orders likely."""
    return len(np.unique(delivered)) >= FEWEST_SAMPLES
