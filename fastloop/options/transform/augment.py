"""`transform=augment`: random crop, flip and colour jitter of images (torchvision v2)."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt
from torchvision.transforms import v2

from fastloop.core.types import Tree, Unsupported, option
from fastloop.options.transform._pair import image_and_label


@option
class Augment:
    """Random crop of the padded image, horizontal flip and colour jitter of (image, label) samples.

    On the device one random draw applies to the whole batch, as in torchvision's transforms; in a
    worker each sample has its own draw.
    """

    where: Literal["worker", "device"]
    """worker: each sample is transformed, in the process that decodes the sample; device: each
    batch is transformed, on the device."""
    padding: NonNegativeInt
    """Number of black pixels that are added at each edge of the image before the crop."""
    flip: Annotated[float, Field(ge=0, le=1)]
    """Probability of a horizontal flip, from 0 to 1."""
    colour: NonNegativeFloat
    """Strength of the random change in brightness and contrast, as in torchvision's ColorJitter; 0:
    no change."""

    def transform_sample(self, sample: Tree) -> Tree:
        """(float32 (channels, height, width), label)."""
        return self._augment(sample)

    def transform_batch(self, batch: Tree) -> Tree:
        """(float32 (batch, channels, height, width), labels)."""
        return self._augment(batch)

    def _augment(self, pair: Tree) -> Tree:
        image, label = image_and_label("augment", pair)
        channels, height, width = image.shape[-3:]
        # torchvision's ColorJitter takes grey and RGB images only.
        if self.colour and channels not in (1, 3):
            reason = f"not possible for images of {channels} channels"
            raise Unsupported(f"transform.colour={self.colour}: {reason}; use 0")
        return _transforms(self.padding, self.flip, self.colour, (height, width))(image), label


@lru_cache
def _transforms(padding: int, flip: float, colour: float, size: tuple[int, int]) -> v2.Compose:
    return v2.Compose(
        [
            v2.RandomCrop(size, padding=padding),
            v2.RandomHorizontalFlip(flip),
            v2.ColorJitter(brightness=colour, contrast=colour),
        ]
    )
