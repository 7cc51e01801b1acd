"""`transform=random_resized_crop`: a random part of each image, flipped at random, normalized."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, Strict

from fastloop.core.types import option
from fastloop.data.cropping import Cropping, CropSize, CropTransform, Deviations, Means
from fastloop.fastloader.columns.crops import RandomResizedCrop

Interval = Annotated[tuple[PositiveFloat, PositiveFloat], Strict(False)]


@option
class RandomResizedCropTransform(CropTransform):
    """torchvision's RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize of image files.

    The crop is a part of decoding: the samples of the dataset are the crops. The random numbers of
    a crop depend only on the seed, the epoch and the sample's index, so all loaders must deliver
    the same crops.
    """

    size: CropSize
    scale: Interval
    ratio: Interval
    flip: Annotated[float, Field(ge=0, le=1)]
    mean: Means
    std: Deviations

    @property
    def cropping(self) -> Cropping:
        """The settings of the crops. Raises ValueError for impossible settings."""
        crop = RandomResizedCrop(self.size, self.scale, self.ratio)
        return Cropping(crop=crop, flip=self.flip, mean=self.mean, std=self.std)
