"""Same-data check of crops: `check_crops` compares the crops of an epoch with the crops that the
seed, the epoch and the index of each sample determine.

The bits of a crop depend on the library that resizes, so hashes can't be compared. Instead the
labels of all samples are compared, and the pixels of some samples, which are drawn at random so
that no loader can foresee them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloop.core.index_batches import epoch_indices
from fastloop.core.plan import Plan
from fastloop.core.prepared_data import PreparedData
from fastloop.core.trees import tree_leaves
from fastloop.core.types import Invalid, Tree, Unsupported
from fastloop.data.cropped_dataset import CroppedSamples
from fastloop.data.decoder_agreement import TOLERANCE
from fastloop.data.digest import Digest, describe_difference, digest, leaves_of
from fastloop.data.reference import reference_hashes
from fastloop.processes.rank_group import all_gather

COMPARED_CROPS = 256
"""Number of samples of an epoch of a rank that are compared pixel by pixel."""
ROUNDING = 0.01
"""Error of normalized floats that is allowed in addition to TOLERANCE, in 255ths."""


def check_crops(
    prepared: PreparedData,
    plan: Plan,
    batches: Iterable[Tree],
    epoch: int,
    observe: Callable[[np.ndarray], object] | None = None,
) -> None:
    """Raise Invalid unless these placed batches are the epoch's crops, in the plan's order.

    Number, labels, dtypes and shapes of all samples are compared, and the pixels of COMPARED_CROPS
    samples, which may differ by TOLERANCE of 255. The dataset is a CroppedDataset.

    observe: called for each batch with the (batch, 16) uint8 hashes that the reference has for its
    samples. Several ranks are checked together, and all raise the same error. Raises Unsupported if
    a rank has no samples.
    """
    comparison = _compare_with(prepared, plan, epoch, observe)
    expected = Digest(len(comparison.indices), 0, prepared.sample)
    error = ""
    try:
        watched = comparison.watch(batches)
        actual = digest(watched, None, prepared.sample, at_most=expected.count)
        counted = Digest(actual.count, 0, actual.leaves)
        # A rank without samples is reported below, by its number.
        if expected.count:
            error = describe_difference(expected, counted) or ""
    except Invalid as reason:
        error = str(reason)
    # Every rank gathers, also one with an error, because the others would wait for it.
    ranks = all_gather((error, expected.count), tuple[str, int])
    if errors := [each for each, _ in ranks if each]:
        raise Invalid(errors[0])
    if idle := [rank for rank, (_, count) in enumerate(ranks) if not count]:
        raise Unsupported(f"rank {idle[0]} gets no samples of {prepared.num_samples}")


def _compare_with(
    prepared: PreparedData,
    plan: Plan,
    epoch: int,
    observe: Callable[[np.ndarray], object] | None,
) -> _Comparison:
    """The comparison of this rank's epoch: all of its labels, and the pixels of some crops."""
    dataset: Any = prepared.dataset
    samples: CroppedSamples = dataset.open()
    indices = _indices_of_rank(prepared, plan, epoch)
    # The system's source of randomness draws the places, because the loader may have seeded
    # Python's generator.
    places = random.SystemRandom().sample(range(len(indices)), min(COMPARED_CROPS, len(indices)))
    return _Comparison(
        samples=CroppedSamples(samples.images, samples.cropping, plan.seed),
        labels=samples.images.labels.numpy(),
        indices=indices,
        epoch=epoch,
        leaves=prepared.sample,
        places=frozenset(places),
        hashes=reference_hashes(prepared) if observe else None,
        observe=observe,
    )


def _indices_of_rank(prepared: PreparedData, plan: Plan, epoch: int) -> np.ndarray:
    """The int64 indices of the samples that this rank delivers, in order."""
    indices = epoch_indices(plan.order, prepared.num_samples, plan.seed, epoch).numpy()
    if plan.loading.drop_last:
        indices = indices[: len(indices) - len(indices) % plan.loading.batch_size]
    return indices[~np.isin(indices, [index for index, _ in prepared.broken])]


@dataclass(kw_only=True)
class _Comparison:
    """Compares the batches of an epoch, as they come, with the crops that it has to deliver."""

    samples: CroppedSamples
    labels: np.ndarray
    """Labels of all samples of the dataset."""
    indices: np.ndarray
    """Index of the sample at each place of the epoch."""
    epoch: int
    leaves: object
    places: frozenset[int]
    """Places in the epoch at which pixels are compared."""
    hashes: np.ndarray | None
    """The reference's hash of each sample, (n, 16) uint8, for `observe`; None without it."""
    observe: Callable[[np.ndarray], object] | None
    done: int = 0
    """Number of samples that have been compared."""

    def watch(self, batches: Iterable[Tree]) -> Iterator[Tree]:
        """Yield each batch once it has been compared; raises Invalid."""
        for batch in batches:
            # If the leaves differ, the digest reports the difference.
            if leaves_of(batch) == self.leaves:
                self._compare(*tree_leaves(batch))
            yield batch

    def _compare(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Compare the labels and chosen crops of a batch; raises Invalid if one differs."""
        indices = self.indices[self.done : self.done + len(labels)]
        delivered = labels.cpu().numpy()[: len(indices)]
        if differing := np.flatnonzero(delivered != self.labels[indices]).tolist():
            place = differing[0]
            text = f"label {delivered[place]}"
            text += f", but sample {indices[place]} has label {self.labels[indices[place]]}"
            raise Invalid(f"{self._name(place)}: {text}")
        for place in range(len(indices)):
            if self.done + place in self.places:
                self._compare_pixels(images[place].cpu(), place, int(indices[place]))
        if self.observe and self.hashes is not None:
            self.observe(self.hashes[indices])
        self.done += len(labels)

    def _compare_pixels(self, image: torch.Tensor, place: int, index: int) -> None:
        crop, _ = self.samples[self.epoch * len(self.samples) + index]
        difference = self.samples.cropping.difference(image, crop)
        # This is `not <=`, and not `>`, so that NaN is a difference as well.
        if not difference <= TOLERANCE + ROUNDING:
            text = f"pixels are up to {difference:.3g} of 255 off the crop of sample {index}"
            raise Invalid(f"{self._name(place)}: {text}, at most {TOLERANCE} are allowed")

    def _name(self, place: int) -> str:
        return f"place {self.done + place:,} of epoch {self.epoch:,}"
