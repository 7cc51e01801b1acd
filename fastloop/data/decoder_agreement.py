"""Measure how far the pixels of a dataset's decoder differ from Pillow's, in a few samples.

Datasets with different pixels are different data. Yet their jobs are ranked together, with a
caveat, if only the decoder differs and the compared samples agree within TOLERANCE.
"""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np
import optree
from torch.utils.data import default_collate

from fastloop.core.fingerprints import fingerprint
from fastloop.core.protocols import Dataset, Decoder
from fastloop.core.source_fingerprint import source_fingerprint
from fastloop.core.types import BadData, Tree
from fastloop.data.cropped_dataset import CroppedDataset
from fastloop.data.image_pixels import decode_rgb
from fastloop.data.spread_indices import spread_indices
from fastloop.fastloader.columns.decoders import decode_by_pillow

TOLERANCE = 2
"""Greatest allowed difference from Pillow's pixels, in 255ths. OpenCV's conversion of CMYK rounds
differently from Pillow's, by up to 2."""
COMPARED_SAMPLES = 8
"""Maximum number of samples that are compared, spread evenly over the dataset."""
MAX_DIFFERENCE = 255
"""The difference, in 255ths, that counts for leaves of different shapes, for unequal leaves that
are not floats, and for floats with an infinity or with a NaN in one leaf only."""


@dataclass(frozen=True)
class PillowDecoder:
    """The decoder with which other decoders are compared."""

    def library(self) -> str:
        """Name of the decoding library."""
        return "Pillow"

    def decode(self, data: bytes) -> np.ndarray:
        """The file's pixels, (height, width, 3) uint8 RGB; raises BadData for a broken file."""
        return decode_rgb(data, decode_by_pillow)


def decoder_equivalence_id(dataset: Dataset, *facts: object) -> str:
    """An id that is equal for datasets with equal facts that differ only in the decoder.

    facts: further properties of the data that must be equal, such as the number of samples.
    """
    return fingerprint(_with_pillow(dataset), source_fingerprint(dataset), *facts)


def difference_to_pillow(dataset: Dataset, broken: set[int]) -> int | None:
    """Largest difference, in 255ths, of a few samples from the same samples decoded by Pillow.

    Returns None if the dataset has no decoder, if Pillow can't decode one of these samples, or if
    all of them are broken. broken: indices of samples that the dataset's decoder can't decode.
    """
    if not _is_encoded(dataset):
        return None
    # Crops are normalized and resized, so the images that they are cut from are compared instead.
    if isinstance(dataset, CroppedDataset):
        dataset = dataset.dataset
    samples = dataset.open()
    references = _with_pillow(dataset).open()
    compared = set(spread_indices(len(samples), COMPARED_SAMPLES)) - broken
    try:
        return max((_difference(samples[i], references[i]) for i in compared), default=None)
    except BadData:
        return None


def _is_encoded(dataset: Any) -> bool:
    return is_dataclass(dataset) and isinstance(getattr(dataset, "decoder", None), Decoder)


def _with_pillow(dataset: Any) -> Any:
    if isinstance(dataset, CroppedDataset):
        return replace(dataset, dataset=_with_pillow(dataset.dataset))
    return replace(dataset, decoder=PillowDecoder())


def _difference(sample: Tree, reference: Tree) -> int:
    leaves = [optree.tree_leaves(default_collate([tree])) for tree in (sample, reference)]
    return max(_leaf_difference(*pair) for pair in zip(*leaves, strict=True))


def _leaf_difference(leaf: Any, reference: Any) -> int:
    """Largest difference of a leaf from its reference, in 255ths.

    Floats are taken to be from 0 to 1. Leaves of other dtypes differ by 0 or by MAX_DIFFERENCE.
    """
    if leaf.shape != reference.shape:
        return MAX_DIFFERENCE
    if not leaf.is_floating_point() or not leaf.numel():
        return 0 if leaf.equal(reference) else MAX_DIFFERENCE
    difference = (leaf - reference).abs()
    # If both are NaN, such as the coordinates of a missing landmark, they do not differ.
    difference[leaf.isnan() & reference.isnan()] = 0
    if not difference.isfinite().all():
        return MAX_DIFFERENCE
    return round(255 * float(difference.max()))
