"""`model=resnet18`: torchvision's ResNet-18, untrained."""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18

from fastloop.core.types import Leaves, option
from fastloop.options.model._image_networks import adapt_channels, adapt_to_images, check_images
from fastloop.options.model._inputs import require_classes


@option
class ResNet18:
    """torchvision's ResNet-18, untrained, for images of any size and number of channels."""

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported if the samples are not (float32 image, class label) pairs."""
        check_images("resnet18", num_classes, sample)

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
        """A new network: (batch, channels, height, width) or (batch, height, width) ->
        (batch, num_classes)."""
        network = resnet18(weights=None, num_classes=require_classes(num_classes))
        network.conv1 = adapt_channels(network.conv1, input_shape)
        return adapt_to_images(network, input_shape)
