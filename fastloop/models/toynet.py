"""`model=toynet`: the small network that seed 000 trains."""

from __future__ import annotations

import math

from torch import nn

from fastloop.network import check_classified, classes_of
from fastloop.types import Leaves, option


@option
class ToyNet:
    """Flatten, then (features)-512-512-(classes) with ReLU.

    Seed 000 names ToyNet and does not show it; this is the usual network of PyTorch's quickstart,
    sized by the samples: of photographs of 256 x 256 pixels the first layer alone has 100 million
    parameters.
    """

    hidden: int

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported where the samples are not (float32 input, class label) pairs."""
        check_classified("toynet", num_classes, sample)

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
        """A new network: (batch, *input_shape) -> (batch, num_classes)."""
        return nn.Sequential(
            nn.Flatten() if input_shape else nn.Unflatten(0, (-1, 1)),
            nn.Linear(math.prod(input_shape), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, classes_of(num_classes)),
        )
