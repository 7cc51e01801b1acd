"""`transform=center_crop`: the middle of each resized image, normalized, as validation takes it."""

from __future__ import annotations

from pydantic import PositiveInt

from fastloop.core.types import option
from fastloop.data.cropping import Cropping, CropSize, CropTransform, Deviations, Means
from fastloop.fastloader.columns.crops import CenterCrop


@option
class CenterCropTransform(CropTransform):
    """torchvision's Resize(resize), CenterCrop(size), ToTensor and Normalize of image files.

    The dataset crops each image when it decodes the image, so the dataset's samples are the crops.
    """

    size: CropSize
    """(height, width) of a sample in pixels."""
    resize: PositiveInt
    """Length in pixels to which the shorter side of an image is resized before the crop."""
    mean: Means
    """Mean of each channel, for pixels from 0 to 1."""
    std: Deviations
    """Standard deviation of each channel, for pixels from 0 to 1."""

    @property
    def cropping(self) -> Cropping:
        """The settings of the crops. Raises ValueError for impossible settings."""
        crop = CenterCrop(self.size, self.resize)
        return Cropping(crop=crop, flip=0.0, mean=self.mean, std=self.std)
