"""crop_columns: the columns of a FastLoader with the crops and labels of a CroppedDataset.

The native decoder makes the crops if it is installed and the job's decoder is Pillow, which has the
same pixels. Otherwise the dataset's own code makes them, as in the workers of other loaders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from fastloop.core.seeds import random_bits
from fastloop.core.traits import DecoderTraits, traits_of
from fastloop.data.cropped_dataset import CroppedDataset, CroppedSamples
from fastloop.data.cropping import Cropping
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.decoders import has_jpeg
from fastloop.fastloader.columns.images import NATIVE, Images


@dataclass(frozen=True)
class CropColumn:
    """Crops made by the loader's threads, one by one."""

    samples: CroppedSamples
    seed: int = 0
    """The seed of the epoch."""
    slow: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def spec(self) -> SampleSpec:
        """dtype and shape of a crop."""
        return SampleSpec(torch.float32, (3, *self.samples.cropping.crop.height_width))

    def with_seed(self, seed: int) -> CropColumn:
        """The column of an epoch with this seed."""
        return replace(self, seed=seed)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write these images' crops to `out`; raises BadData that names the file."""
        keys = random_bits(indices, self.seed)
        rows = self.spec.view_tensor(out)
        for index, key, row in zip(indices.tolist(), keys.tolist(), rows, strict=True):
            row.copy_(self.samples.make(index, key)[0])


def crop_columns(dataset: CroppedDataset) -> list[Any]:
    """The columns of the crops and of their labels."""
    # The native decoder has Pillow's pixels, bit by bit. With another decoder, its crops would not
    # be the samples that the job asks for.
    samples = dataset.open()
    cropping = dataset.cropping
    images = samples.images
    if not (has_jpeg() and traits_of(DecoderTraits, dataset.decoder).is_reference):
        return [CropColumn(samples), images.labels]
    paths = [str(images.path(index)) for index in range(len(images))]
    return [native_crops(paths, cropping), images.labels]


def native_crops(encoded: Sequence[str] | Sequence[bytes], cropping: Cropping) -> Images:
    """The crops of files, or of their bytes, by the native decoder; raises ImportError if it is
    missing."""
    statistics = cropping.mean, cropping.std
    settings = {"crop": cropping.crop, "flip": cropping.flip, "normalize": statistics}
    return Images(encoded, decoder=NATIVE, **settings)
