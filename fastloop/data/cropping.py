"""Crop images: the pixels of a part of an image become the floats of a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt, Strict

from fastloop.core.types import BadData, Tree
from fastloop.fastloader.columns.crops import Crop, Cut, RandomResizedCrop
from fastloop.fastloader.columns.images import MAX_PIXELS

CropSize = Annotated[tuple[PositiveInt, PositiveInt], Strict(False)]
"""(height, width) of a sample in pixels."""
Means = Annotated[tuple[float, float, float], Strict(False)]
"""Mean of each channel, for pixels from 0 to 1."""
Deviations = Annotated[tuple[PositiveFloat, PositiveFloat, PositiveFloat], Strict(False)]
"""Standard deviation of each channel, for pixels from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class Cropping:
    """Settings by which samples are cut out of images, flipped and normalized."""

    crop: Crop
    flip: float
    """Probability that a sample is flipped horizontally."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def is_random(self) -> bool:
        """True if an image's samples differ from epoch to epoch."""
        return isinstance(self.crop, RandomResizedCrop) or 0 < self.flip < 1

    def make_sample(self, pixels: np.ndarray, cut: Cut) -> torch.Tensor:
        """A float32 (3, height, width) sample, normalized, from (height, width, 3) uint8 pixels.

        It equals the result of torchvision's transforms, with an antialiased resize of uint8.
        Raises BadData for an image that would be too large once resized.
        """
        from torchvision.transforms.v2 import functional

        rows, columns = cut.rows, cut.columns
        if rows.resized * columns.resized > MAX_PIXELS:
            raise BadData(f"resized to {rows.resized} x {columns.resized}, it is too large")
        image = torch.from_numpy(pixels).permute(2, 0, 1)
        image = image.narrow(1, rows.start, rows.length).narrow(2, columns.start, columns.length)
        image = functional.resize(image, [rows.resized, columns.resized], antialias=True)
        image = image.narrow(1, rows.first, rows.count).narrow(2, columns.first, columns.count)
        if cut.is_flipped:
            image = functional.horizontal_flip(image)
        floats = image.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        return functional.normalize(floats, [*self.mean], [*self.std], inplace=True)

    def difference(self, image: torch.Tensor, other: torch.Tensor) -> float:
        """The largest difference of two samples' pixels, in 255ths."""
        # The samples were divided by std, so the difference is multiplied by std to be in pixels.
        by_channel = (image - other).abs().flatten(1).amax(1).double()
        return 255 * float((by_channel * torch.tensor(self.std, dtype=torch.float64)).max())


class CropTransform:
    """Base of the transforms that are a part of decoding: they cut samples of one size out of
    images of any size. The dataset's samples are these crops: a loader has nothing left to do."""

    where: ClassVar[Literal["device"]] = "device"
    is_identity: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # FastLoader's class checks the values, so a wrong one is reported when the job is composed.
        _ = self.cropping

    @property
    def cropping(self) -> Cropping:
        """The crops. Raises ValueError for impossible ones."""
        raise NotImplementedError

    def transform_sample(self, sample: Tree) -> Tree:
        """The sample, which is a crop already."""
        return sample

    def transform_batch(self, batch: Tree) -> Tree:
        """The batch, of crops already."""
        return batch
