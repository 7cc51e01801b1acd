"""Fit torchvision's networks to images of any shape, for model=resnet18 and mobilenet_v3_small."""

from __future__ import annotations

from typing import Any

from torch import nn

from fastloop.core.types import Leaves
from fastloop.options.model._inputs import check_labelled


def check_images(model: str, num_classes: int | None, sample: Leaves | None) -> None:
    """Raise Unsupported unless the samples are (float32 image, int64 class label) pairs.

    model: name of the model, for the message. num_classes: None if the samples have no classes.
    sample: the dtype and the shape of each leaf; None if they are not known yet.
    """
    expected = "float32 (channels, height, width) or (height, width) image"
    check_labelled(model, num_classes, sample, (2, 3), expected)


def adapt_to_images(network: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """The network, preceded by a layer that adds a channel if images have none.

    input_shape: (channels, height, width) or (height, width) of an image.
    """
    if len(input_shape) == 3:
        return network
    return nn.Sequential(nn.Unflatten(1, (1, input_shape[0])), network)


def adapt_channels(layer: nn.Conv2d, input_shape: tuple[int, ...]) -> nn.Conv2d:
    """The first layer of a network, or a new layer if its number of channels does not fit.

    The new layer has the channels of the images, and Kaiming's initialization. input_shape:
    (channels, height, width) or (height, width) of an image.
    """
    channels = input_shape[0] if len(input_shape) == 3 else 1
    if channels == layer.in_channels:
        return layer
    sizes: Any = (layer.kernel_size, layer.stride, layer.padding)
    # This is the initialization that torchvision gives the convolutions of its ResNets.
    new = nn.Conv2d(channels, layer.out_channels, *sizes, bias=layer.bias is not None)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new
