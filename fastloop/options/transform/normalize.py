"""`transform=normalize`: (image - mean) / std (torchvision v2)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import PositiveFloat, Strict
from torchvision.transforms.v2 import functional

from fastloop.core.types import Tree, Unsupported, option
from fastloop.options.transform._pair import image_and_label


@option
class Normalize:
    """(image - mean) / std of (image, label) samples or batches."""

    where: Literal["worker", "device"]
    """worker: each sample is transformed, in the process that decodes the sample; device: each
    batch is transformed, on the device."""
    mean: Annotated[tuple[float, ...], Strict(False)]
    """Mean of each channel, or one mean for all channels."""
    std: Annotated[tuple[PositiveFloat, ...], Strict(False)]
    """Standard deviation of each channel, or one standard deviation for all channels."""

    def transform_sample(self, sample: Tree) -> Tree:
        """(float32 (channels, height, width), label)."""
        return self._normalize(sample)

    def transform_batch(self, batch: Tree) -> Tree:
        """(float32 (batch, channels, height, width), labels)."""
        return self._normalize(batch)

    def _normalize(self, pair: Tree) -> Tree:
        image, label = image_and_label("normalize", pair)
        channels = image.shape[-3]
        for name, values in (("mean", self.mean), ("std", self.std)):
            # torch would broadcast the image to as many channels as there are values.
            if len(values) not in (1, channels):
                reason = f"{len(values)} values for {channels} channels"
                raise Unsupported(f"transform.{name}: {reason}; give one each, or one for all")
        return functional.normalize(image, list(self.mean), list(self.std)), label
