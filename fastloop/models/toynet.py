"""`model=toynet`: the small network that seed 000 trains."""

from __future__ import annotations

import math

from torch import nn

from fastloop.types import option


@option
class ToyNet:
    """Flatten, then (features)-512-512-(classes) with ReLU.

    Seed 000 names ToyNet and does not show it; this is the usual network of PyTorch's quickstart,
    sized by the samples.
    """

    hidden: int

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A new network: (batch, *input_shape) -> (batch, num_classes)."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(input_shape), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, num_classes),
        )
