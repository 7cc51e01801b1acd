"""The transform of the workload normalized."""

from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat

from fastloop.core.types import Tree, option


@option
class ToFloats:
    """(uint8 / 255 - mean) / std as float32, by the three fastest operations."""

    converts_bytes: ClassVar[bool] = True
    where: Literal["worker", "device"] = "device"
    mean: PositiveFloat
    std: PositiveFloat

    def transform_sample(self, sample: Tree) -> Tree:
        """The sample with its image converted."""
        return self.transform_batch(sample)

    def transform_batch(self, batch: Tree) -> Tree:
        """The batch with its images converted."""
        pixels, labels = batch
        floats = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device)
        floats.copy_(pixels).sub_(255 * self.mean).mul_(1 / (255 * self.std))
        return floats, labels
