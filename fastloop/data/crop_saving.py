"""Measure the CPU time of random crops that one column of images saves over another column."""

from __future__ import annotations

import numpy as np

from fastloop.core.spans import cpu_ns
from fastloop.data.spread_indices import spread_indices
from fastloop.fastloader.columns.crops import RandomResizedCrop
from fastloop.fastloader.columns.encoded_images import EncodedImages
from fastloop.fastloader.columns.images import CroppedImages, choose_crop_decoder
from fastloop.fastloader.columns.pixel_format import pixel_format

SIDE, FLIP = 224, 0.5
"""Side of a crop in pixels and probability of a flip, as in the usual training on ImageNet."""
MOST_IMAGES, DRAWS, REPEATS = 64, 4, 2
"""Maximum number of images that are tried, number of random crops of each, and number of
measurements of each crop."""
BUDGET_NS = 1_000_000_000
"""Nanoseconds of CPU time after which no further image is tried."""


def measure_saving_ms(before: EncodedImages, after: EncodedImages) -> float | None:
    """Milliseconds of CPU time that a crop from `after` saves over the same crop from `before`.

    The value is a mean over some of the images, and negative if crops from `after` are slower. None
    if none of these images can be decoded. before, after: the same images in two encodings.
    """
    source, stored = _crops_of(before), _crops_of(after)
    begin_ns = cpu_ns()
    saved_ns = []
    for index in spread_indices(len(before), MOST_IMAGES):
        try:
            # The first crop from each column also reads the file into memory, so the time of this
            # crop is not counted.
            _crop_ns(source, index, 0)
            _crop_ns(stored, index, 0)
            saved_ns += [_gain_ns(source, stored, index, seed) for seed in range(DRAWS)]
        # A broken image is left out here. A loader that reads the image raises an error.
        except (OSError, ValueError):
            continue
        if cpu_ns() - begin_ns > BUDGET_NS:
            break
    return float(np.mean(saved_ns)) / 1e6 if saved_ns else None


def _crops_of(images: EncodedImages) -> CroppedImages:
    """The column of random crops of these images."""
    pixels = pixel_format(None, None, "CHW")
    return CroppedImages(images, RandomResizedCrop(SIDE), FLIP, pixels, choose_crop_decoder(None))


def _gain_ns(source: CroppedImages, stored: CroppedImages, index: int, seed: int) -> int:
    """Nanoseconds of CPU time that a crop of the stored image saves.

    seed: decides which part of the image is cropped.
    """
    # Other programs evict data from the caches, which can only make a crop slower. The fastest of
    # the repeats therefore counts. The two columns take turns, so that a busy moment is unlikely to
    # affect only one of them.
    of_source, of_stored = [], []
    for _ in range(REPEATS):
        of_source.append(_crop_ns(source, index, seed))
        of_stored.append(_crop_ns(stored, index, seed))
    return min(of_source) - min(of_stored)


def _crop_ns(column: CroppedImages, index: int, seed: int) -> int:
    """Nanoseconds of CPU time that this thread takes for one crop."""
    out = np.empty((1, column.spec.nbytes), np.uint8)
    indices = np.array([index])
    start = cpu_ns()
    column.with_seed(seed).fill(indices, out)
    return cpu_ns() - start
