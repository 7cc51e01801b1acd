"""`transform=augment`: the usual random changes of images, by torchvision v2."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt
from torchvision.transforms import v2

from fastloop.images import image_and_label
from fastloop.types import Tree, Unsupported, option


@option
class Augment:
    """A crop out of the padded image, a flip, other colours: (image, label), labels stay.

    On the device one draw serves the whole batch, as torchvision's transforms do it; in the worker
    each sample has its own.
    """

    where: Literal["worker", "device"]
    padding: NonNegativeInt
    flip: Annotated[float, Field(ge=0, le=1)]
    colour: NonNegativeFloat

    def of_a_sample(self, sample: Tree) -> Tree:
        """(float32 (channels, height, width), label)."""
        return self._changed(sample)

    def of_a_batch(self, batch: Tree) -> Tree:
        """(float32 (batch, channels, height, width), labels)."""
        return self._changed(batch)

    def _changed(self, pair: Tree) -> Tree:
        image, label = image_and_label("augment", pair)
        channels, height, width = image.shape[-3:]
        if self.colour and channels not in (1, 3):
            told = f"images of {channels} channels have no colours"
            raise Unsupported(f"transform.colour={self.colour}: {told}; 0 leaves them")
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
