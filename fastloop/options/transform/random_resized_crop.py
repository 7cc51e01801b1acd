"""`transform=random_resized_crop`: a random part of each image, flipped at random, normalized."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, Strict, model_validator

from fastloop.core.types import Tree, option
from fastloop.data.cropping import Cropping, CropSize, Deviations, Means
from fastloop.fastloader.columns.crops import RandomResizedCrop

Interval = Annotated[tuple[PositiveFloat, PositiveFloat], Strict(False)]


@option
class RandomResizedCropTransform:
    """torchvision's RandomResizedCrop, RandomHorizontalFlip, ToTensor and Normalize of image files.

    It is a part of decoding: the samples of the dataset are the crops. The random numbers of a crop
    depend only on the seed, the epoch and the sample's index, so all loaders must deliver the same
    crops.
    """

    where: ClassVar[Literal["device"]] = "device"
    # The dataset's samples are crops already: for loaders there is nothing left to transform.
    is_identity: ClassVar[bool] = True
    size: CropSize
    scale: Interval
    ratio: Interval
    flip: Annotated[float, Field(ge=0, le=1)]
    mean: Means
    std: Deviations

    @model_validator(mode="after")
    def _is_possible(self) -> RandomResizedCropTransform:
        # FastLoader's class checks the values, so a wrong one is reported when the job is composed.
        _ = self.cropping
        return self

    @property
    def cropping(self) -> Cropping:
        """The crops. Raises ValueError for impossible ones."""
        crop = RandomResizedCrop(self.size, self.scale, self.ratio)
        return Cropping(crop=crop, flip=self.flip, mean=self.mean, std=self.std)

    def transform_sample(self, sample: Tree) -> Tree:
        """The sample, which is a crop already."""
        return sample

    def transform_batch(self, batch: Tree) -> Tree:
        """The batch, of crops already."""
        return batch
