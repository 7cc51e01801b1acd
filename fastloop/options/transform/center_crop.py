"""`transform=center_crop`: the middle of each resized image, normalized, as validation takes it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt, model_validator

from fastloop.core.types import Tree, option
from fastloop.data.cropping import Cropping, CropSize, Deviations, Means
from fastloop.fastloader.columns.crops import CenterCrop


@option
class CenterCropTransform:
    """torchvision's Resize(resize), CenterCrop(size), ToTensor and Normalize of image files.

    It is a part of decoding: the samples of the dataset are the crops.
    """

    where: ClassVar[Literal["device"]] = "device"
    # The dataset's samples are crops already: for loaders there is nothing left to transform.
    is_identity: ClassVar[bool] = True
    size: CropSize
    resize: PositiveInt
    mean: Means
    std: Deviations

    @model_validator(mode="after")
    def _is_possible(self) -> CenterCropTransform:
        # FastLoader's class checks the values, so a wrong one is reported when the job is composed.
        _ = self.cropping
        return self

    @property
    def cropping(self) -> Cropping:
        """The crops. Raises ValueError for impossible ones."""
        crop = CenterCrop(self.size, self.resize)
        return Cropping(crop=crop, flip=0.0, mean=self.mean, std=self.std)

    def transform_sample(self, sample: Tree) -> Tree:
        """The sample, which is a crop already."""
        return sample

    def transform_batch(self, batch: Tree) -> Tree:
        """The batch, of crops already."""
        return batch
