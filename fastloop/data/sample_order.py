"""The order in which samples are delivered, and its quality as a shuffle, judged from hashes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from fastloop.core.index_batches import epoch_indices
from fastloop.core.order_parts import order_of_all_ranks, without_prefix
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.protocols import RandpermOrder
from fastloop.core.result import Shuffling
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


def shuffling_of(places: Places, num_samples: int, batch_size: int) -> Shuffling:
    """The quality of these epochs' shuffling, on average, for one rank.

    batch_size: neighbours that are at most that many samples apart count as kept.
    """
    epochs = list(places.values())
    repeats = any(map(np.array_equal, epochs[:-1], epochs[1:]))
    return Shuffling(
        each_sample_once=all(len(np.unique(epoch)) == len(epoch) for epoch in epochs),
        new_order_each_epoch=not repeats if len(epochs) > 1 else None,
        distance=float(np.mean([_distance(epoch, num_samples) for epoch in epochs])),
        neighbours_kept=float(np.mean([_neighbours_kept(epoch, batch_size) for epoch in epochs])),
    )


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


def _distance(places: np.ndarray, num_samples: int) -> float:
    """Mean distance of samples from their stored place: 0 in stored order, 1 if it is uniform."""
    count = len(places)
    if count < 2:
        return 0.0
    # Two independent uniform places among n are (n + 1) / (3 n) of the whole length apart on
    # average, hence the factor.
    now = np.arange(count) / (count - 1)
    before = places / max(1, num_samples - 1)
    return float(np.abs(now - before).mean() * 3 * count / (count + 1))


def _neighbours_kept(places: np.ndarray, batch_size: int) -> float:
    """Share of stored neighbours that are delivered within a batch size of each other, minus the
    share that a uniform shuffle would keep: 1 in stored order, 0 if it is uniform."""
    count = len(places)
    if count < 2:
        return 0.0
    order = np.argsort(places, kind="stable")
    # The probability that two independent uniform places are at most a batch size apart.
    by_chance = 1 - (1 - min(1.0, batch_size / count)) ** 2
    if by_chance == 1:
        return 0.0
    kept = float((np.abs(np.diff(order)) <= batch_size).mean())
    return max(0.0, (kept - by_chance) / (1 - by_chance))
