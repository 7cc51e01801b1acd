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
    """(height, width) of a sample in pixels."""
    scale: Interval
    """Least and greatest area of the crop as a share of the image's area."""
    ratio: Interval
    """Least and greatest ratio of the crop's width to its height."""
    flip: Annotated[float, Field(ge=0, le=1)]
    """Probability of a horizontal flip, from 0 to 1."""
    mean: Means
    """Mean of each channel, for pixels from 0 to 1."""
    std: Deviations
    """Standard deviation of each channel, for pixels from 0 to 1."""

    @property
    def cropping(self) -> Cropping:
        """The settings of the crops. Raises ValueError for impossible settings."""
        crop = RandomResizedCrop(self.size, self.scale, self.ratio)
        return Cropping(crop=crop, flip=self.flip, mean=self.mean, std=self.std)
