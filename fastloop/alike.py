"""Decoders that agree: how far a dataset's pixels are from Pillow's, looked at in a few samples.

Pixels that differ are other data, and are ranked all the same where only the decoder differs and
the samples looked at agree within the tolerance; their jobs' notes say so.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

import numpy as np
import optree
from torch.utils.data import default_collate

from fastloop.decoders.pil import Pil
from fastloop.files import fingerprint, source_of
from fastloop.protocols import Dataset, Decoder
from fastloop.types import BadData, Tree

TOLERANCE = 2
"""Of 255: OpenCV's own conversion of CMYK rounds otherwise than Pillow's, by up to that."""
LOOKED_AT = 8
"""Samples, spread evenly over the dataset."""
OTHER = 255


def images_whatever_decodes(dataset: Dataset, *facts: object) -> str:
    """Equal for datasets with these facts that differ in nothing but the decoder."""
    return fingerprint(_decoded_by_pillow(dataset), source_of(dataset), *facts)


def difference_to_pillow(dataset: Dataset, broken: set[int]) -> int | None:
    """The largest difference, of 255, between what a few samples are and what Pillow makes of them.

    broken: indices of samples that can't be decoded. None without a decoder, and where Pillow can't
    decode what this one can.
    """
    if not _is_encoded(dataset):
        return None
    samples, wanted = dataset.open(), _decoded_by_pillow(dataset).open()
    spread = np.linspace(0, len(samples) - 1, LOOKED_AT).round().astype(int).tolist()
    looked_at = set(spread) - broken
    try:
        return max((_difference(samples[one], wanted[one]) for one in looked_at), default=None)
    except BadData:
        return None


def _is_encoded(dataset: Any) -> bool:
    return is_dataclass(dataset) and isinstance(getattr(dataset, "decoder", None), Decoder)


def _decoded_by_pillow(dataset: Any) -> Any:
    return replace(dataset, decoder=Pil())


def _difference(sample: Tree, wanted: Tree) -> int:
    leaves = [optree.tree_leaves(default_collate([one])) for one in (sample, wanted)]
    return max(_of_a_leaf(*pair) for pair in zip(*leaves, strict=True))


def _of_a_leaf(got: Any, wanted: Any) -> int:
    """Of floats in 0..1 in 255ths; anything else is the same or another one."""
    if got.shape != wanted.shape:
        return OTHER
    if got.is_floating_point():
        return round(255 * float((got - wanted).abs().max()))
    return 0 if got.equal(wanted) else OTHER
