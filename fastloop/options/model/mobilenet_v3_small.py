"""`model=mobilenet_v3_small`: torchvision's MobileNetV3-Small, untrained."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models import mobilenet_v3_small

from fastloop.core.types import Leaves, option
from fastloop.options.model._image_networks import adapt_channels, adapt_to_images, check_images
from fastloop.options.model._inputs import require_classes


@option
class MobileNetV3Small:
    """torchvision's MobileNetV3-Small, untrained, for images of any size and number of channels."""

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported if the samples are not (float32 image, class label) pairs."""
        check_images("mobilenet_v3_small", num_classes, sample)

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
        """A new network: (batch, channels, height, width) or (batch, height, width) ->
        (batch, num_classes)."""
        network = mobilenet_v3_small(weights=None, num_classes=require_classes(num_classes))
        first: Any = network.features[0]
        first[0] = adapt_channels(first[0], input_shape)
        return adapt_to_images(network, input_shape)
