"""`transform=normalize`: zero mean and unit deviation, by torchvision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import PositiveFloat, Strict
from torchvision.transforms.v2 import functional

from fastloop.images import image_and_label
from fastloop.types import Tree, Unsupported, option


@option
class Normalize:
    """(image - mean) / std of (image, label) samples or batches; labels stay."""

    where: Literal["worker", "device"]
    mean: Annotated[tuple[float, ...], Strict(False)]
    std: Annotated[tuple[PositiveFloat, ...], Strict(False)]

    def of_a_sample(self, sample: Tree) -> Tree:
        """(float32 (channels, height, width), label)."""
        return self._normalized(sample)

    def of_a_batch(self, batch: Tree) -> Tree:
        """(float32 (batch, channels, height, width), labels)."""
        return self._normalized(batch)

    def _normalized(self, pair: Tree) -> Tree:
        image, label = image_and_label("normalize", pair)
        channels = image.shape[-3]
        for name, figures in (("mean", self.mean), ("std", self.std)):
            if len(figures) not in (1, channels):  # torch would make images of as many channels
                told = f"{len(figures)} figures, channels: {channels}"
                raise Unsupported(f"transform.{name}: {told}; one for each, or one for all")
        return functional.normalize(image, list(self.mean), list(self.std)), label
