"""Checks of the samples that a model accepts, and adaptations of networks to images."""

from __future__ import annotations

from typing import Any

from torch import nn

from fastloop.core.types import Leaves, Unsupported

LABEL = ("int64", ())
"""dtype and shape of a class label."""


def check_labelled(
    model: str,
    num_classes: int | None,
    sample: Leaves | None,
    ndims: tuple[int, ...] | None = None,
    expected: str = "float32 input",
) -> None:
    """Raise Unsupported if the samples are not (float32 input, int64 class label) pairs.

    ndims: numbers of dimensions that the input may have; None: any.
    sample: None if it is not known yet.
    """
    got = "samples without classes" if num_classes is None else ""
    if sample:
        fits = len(sample) == 2 and sample[0][0] == "float32" and sample[1] == LABEL
        if not fits or (ndims and len(sample[0][1]) not in ndims):
            got = describe_sample(sample)
    if got:
        raise unfit_error(model, f"({expected}, int64 class label)", got)


def check_images(model: str, num_classes: int | None, sample: Leaves | None) -> None:
    """Raise Unsupported if the samples are not (float32 image, int64 class label) pairs."""
    expected = "float32 (channels, height, width) or (height, width) image"
    check_labelled(model, num_classes, sample, (2, 3), expected)


def require_classes(num_classes: int | None) -> int:
    """The number of classes; `check` has refused data without classes."""
    assert num_classes is not None
    return num_classes


def unfit_error(model: str, expected: str, got: str) -> Unsupported:
    """The error for samples that a model does not accept."""
    reason = f"model={model} needs {expected} samples, got {got}"
    return Unsupported(f"{reason}; benchmark=traversal takes any")


def describe_sample(sample: Leaves) -> str:
    """The dtypes and shapes of a sample's leaves, as messages show them."""
    return f"({', '.join(f'{dtype}{list(shape)}' for dtype, shape in sample)})"


def adapt_to_images(network: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """The network for these samples; it adds a channel to samples of (height, width)."""
    if len(input_shape) == 3:
        return network
    return nn.Sequential(nn.Unflatten(1, (1, input_shape[0])), network)


def adapt_channels(layer: nn.Conv2d, input_shape: tuple[int, ...]) -> nn.Conv2d:
    """The first layer, or a new one with the samples' channels (Kaiming initialization)."""
    channels = input_shape[0] if len(input_shape) == 3 else 1
    if channels == layer.in_channels:
        return layer
    sizes: Any = (layer.kernel_size, layer.stride, layer.padding)
    # This is the initialization that torchvision gives the convolutions of its ResNets.
    new = nn.Conv2d(channels, layer.out_channels, *sizes, bias=layer.bias is not None)
    nn.init.kaiming_normal_(new.weight, mode="fan_out", nonlinearity="relu")
    return new
