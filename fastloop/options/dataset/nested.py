"""`dataset=nested`: nested dicts and lists of image tensors, generated on access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt

from fastloop.core.fingerprints import fingerprint
from fastloop.core.types import Tree, option
from fastloop.options.dataset._rng import sample_generator

SEED = 0
"""The seed of the random images."""


@dataclass(frozen=True)
class NestedSamples:
    """Samples {"im": {"label", "image"}, "cim", "pim": [first, second]}, generated on access.

    Each leaf is a random image: float32 (channels, size, size) in [0, 1), with one channel for
    "label" and three channels for all others.
    """

    count: int
    """Number of samples."""
    size: int
    """Height and width of each image in pixels."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tree:
        if not 0 <= index < self.count:
            raise IndexError(index)
        generator = sample_generator(SEED, index)

        def image(channels: int = 3) -> torch.Tensor:
            shape = (channels, self.size, self.size)
            return torch.from_numpy(generator.random(shape, dtype=np.float32))

        return {
            "im": {"label": image(1), "image": image()},
            "cim": image(),
            "pim": [image(), image()],
        }


@option
class NestedDataset:
    """A dataset of nested dicts and lists of images, which placement=direct can't move."""

    label: ClassVar[str] = "nested"
    num_classes: ClassVar[None] = None
    uint8_scale: ClassVar[None] = None
    count: PositiveInt
    """Number of samples."""
    size: PositiveInt
    """Height and width of each image in pixels."""

    def fetch(self) -> str:
        """A fingerprint of the settings, and of the version of numpy, which draws the images."""
        return fingerprint("nested", self.count, self.size, np.__version__)

    def open(self) -> NestedSamples:
        """The samples, each generated on access."""
        return NestedSamples(self.count, self.size)
