"""Measure the limit for loaders of crops: how fast this machine can make a job's crops of image
files.

One thread per usable core makes crops of files that are in memory, again and again into the same
memory, without a loader, an order or a queue. Two ways are tried, and the limit is the rate of the
faster way. The native decoder decodes, crops, resizes, flips and converts in one pass in C. The
job's own decoder with torchvision's resize may be faster for files that the native decoder leaves
to Pillow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloop.core.limit import Limit, LimitOrigin
from fastloop.core.seeds import random_bits
from fastloop.core.spans import now_ns
from fastloop.core.types import name_of
from fastloop.data.crop_columns import CropColumn, native_crops
from fastloop.data.cropped_dataset import CroppedSamples
from fastloop.data.decoder_agreement import COMPARED_SAMPLES, TOLERANCE
from fastloop.data.same_crops import ROUNDING
from fastloop.fastloader.columns.column import Column, SampleSpec
from fastloop.fastloader.columns.crops import draw_cut
from fastloop.fastloader.columns.decoders import has_jpeg
from fastloop.trial.decode_limit import keep_opencv_threads, read_files
from fastloop.trial.rate_on_cores import budget_ns, cores_of_rank, rate_on_cores

NATIVE_DECODER = "native decoder"
SAMPLES_PER_CALL = 8
"""Number of crops that a thread makes by the native decoder between two clock reads."""


@dataclass(frozen=True)
class DecodedCrops:
    """Crops of files in memory, made by the job's own decoder, as a column of FastLoader."""

    samples: CroppedSamples
    """Samples with the seed of the epoch, from which random crops are drawn."""
    files: Sequence[bytes]
    """Content of the image files."""

    def __len__(self) -> int:
        return len(self.files)

    @property
    def spec(self) -> SampleSpec:
        """dtype and shape of a crop, the same as the job's."""
        return CropColumn(self.samples).spec

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write these files' crops to `out`; raises BadData."""
        images, cropping = self.samples.images, self.samples.cropping
        keys = random_bits(indices, self.samples.seed)
        rows = self.spec.view_tensor(out)
        for index, key, row in zip(indices.tolist(), keys.tolist(), rows, strict=True):
            pixels = images.decode_file(self.files[index])
            cut = draw_cut(cropping.crop, cropping.flip, key, *pixels.shape[:2])
            row.copy_(cropping.make_sample(pixels, cut))


@dataclass(frozen=True)
class CropMaking:
    """Crops of the same files made on all threads, `per_call` with each call."""

    column: Column
    per_call: int
    """Number of crops of each call."""
    threads: int

    def run(self, thread: int, stop_ns: int) -> int:
        """Make crops until `stop_ns`, with one call at least, and return their number."""
        # Each thread begins at a different file, so that no thread finds a file in the cache that
        # another thread has just read.
        start = thread * len(self.column) // self.threads
        count = 0
        out = np.empty((self.per_call, self.column.spec.nbytes), np.uint8)
        while True:
            places = np.arange(start + count, start + count + self.per_call)
            self.column.fill(places % len(self.column), out)
            count += self.per_call
            if now_ns() >= stop_ns:
                return count

    def rate(self, duration_ns: int) -> float:
        """Crops per second of all threads; 0 if a file can't be read."""
        try:
            return rate_on_cores(self.run, self.threads, duration_ns)
        except ValueError:
            return 0.0


def crop_limit(
    samples: CroppedSamples, broken: Collection[int], seed: int, window_s: float
) -> Limit | None:
    """Crops per second that this machine can make; None without the native decoder, or if no
    decoder reads the files.

    broken: indices of images that can't be decoded. Measuring takes about window_s, but at least
    0.05 s and one call of each thread, and at most 1 s. It needs 128 MiB for files, and the memory
    of the samples of a call.
    """
    if not has_jpeg():
        return None
    cores = cores_of_rank()
    decoder = name_of(samples.images.decoder)
    files = read_files(samples.images, broken, seed, cores)
    own = DecodedCrops(CroppedSamples(samples.images, samples.cropping, seed), files)
    native = native_crops(files, samples.cropping).with_seed(seed)
    with keep_opencv_threads():
        ways = {decoder: CropMaking(own, 1, cores)}
        if _crops_agree(native, own):
            ways[NATIVE_DECODER] = CropMaking(native, SAMPLES_PER_CALL, cores)
        # The ways share the time of one limit.
        slice_ns = budget_ns(window_s) // len(ways)
        rates = {name: way.rate(slice_ns) for name, way in ways.items()}
    engine, best = max(rates.items(), key=lambda item: item[1])
    if best == 0:
        return None
    origin = LimitOrigin(kind="cropped images", engine=engine, cores=cores)
    return Limit(samples_per_s=best, origin=origin)


def _crops_agree(native: Column, own: DecodedCrops) -> bool:
    """True if both make the same first crops, within the tolerance that loaders are allowed."""
    indices = np.arange(min(COMPARED_SAMPLES, len(own)))
    difference: Callable[..., float] = own.samples.cropping.difference
    try:
        pairs = zip(_make_crops(native, indices), _make_crops(own, indices), strict=True)
    except ValueError:
        return False
    return all(difference(one, two) <= TOLERANCE + ROUNDING for one, two in pairs)


def _make_crops(column: Column, indices: np.ndarray) -> torch.Tensor:
    out: Any = np.empty((len(indices), column.spec.nbytes), np.uint8)
    column.fill(indices, out)
    return column.spec.view_tensor(out)
