"""The (image, label) samples that the transforms of images take."""

from __future__ import annotations

import torch

from fastloop.core.types import Tree, Unsupported


def image_and_label(name: str, pair: Tree) -> tuple[torch.Tensor, torch.Tensor | int]:
    """The (float image, label) of a sample; raises Unsupported for any other sample."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise Unsupported(f"transform={name}: it takes (image, label) samples")
    image, label = pair
    if not (isinstance(image, torch.Tensor) and image.is_floating_point() and image.ndim >= 3):
        raise Unsupported(f"transform={name}: it takes float images (channels, height, width)")
    return image, label
