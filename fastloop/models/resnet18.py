"""`model=resnet18`: torchvision's ResNet-18, untrained."""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet18

from fastloop.network import check_images, classes_of, for_channels, of_images
from fastloop.types import Leaves, option


@option
class ResNet18:
    """Images of any size; where they have not three channels the first layer is one of theirs."""

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported where the samples are not (float32 image, class label) pairs."""
        check_images("resnet18", num_classes, sample)

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
        """A new network: (batch, channels, height, width) or (batch, height, width) ->
        (batch, num_classes)."""
        network = resnet18(weights=None, num_classes=classes_of(num_classes))
        network.conv1 = for_channels(network.conv1, input_shape)
        return of_images(network, input_shape)
