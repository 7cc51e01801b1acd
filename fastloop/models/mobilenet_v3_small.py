"""`model=mobilenet_v3_small`: torchvision's MobileNetV3-Small, untrained."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models import mobilenet_v3_small

from fastloop.network import check_images, classes_of, for_channels, of_images
from fastloop.types import Leaves, option


@option
class MobileNetV3Small:
    """Images of any size; where they have not three channels the first layer is one of theirs."""

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported where the samples are not (float32 image, class label) pairs."""
        check_images("mobilenet_v3_small", num_classes, sample)

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
        """A new network: (batch, channels, height, width) or (batch, height, width) ->
        (batch, num_classes)."""
        network = mobilenet_v3_small(weights=None, num_classes=classes_of(num_classes))
        first: Any = network.features[0]
        first[0] = for_channels(first[0], input_shape)
        return of_images(network, input_shape)
