"""Judge how well a loader has shuffled the samples of some epochs."""

from __future__ import annotations

import numpy as np

from fastloop.core.result import Shuffling
from fastloop.data.sample_order import Places


def shuffling_of(places: Places, num_samples: int, batch_size: int) -> Shuffling:
    """The quality of one rank's shuffling, with means over these epochs.

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
    """Share of stored neighbours that are delivered within a batch size of each other, scaled so
    that it is 1 in stored order, and 0 for the share that a uniform shuffle would keep or less.

    Also 0 for fewer than two samples, and if an epoch has no more samples than a batch.
    """
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
