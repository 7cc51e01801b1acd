"""`model=toynet`: a small multilayer perceptron."""

from __future__ import annotations

import math

from torch import nn

from fastloop.core.types import Leaves, option
from fastloop.options.model._inputs import check_labelled, require_classes

LARGE_WEIGHTS = 20_000_000
"""Number of weights of the first layer from which a caveat is shown; ResNet-18 has 11 million in
all."""
FLOAT_BYTES = 4


@option
class ToyNet:
    """Flatten, then three linear layers with ReLU: features-hidden-hidden-classes.

    The network of PyTorch's quickstart, sized by the samples: for photographs of 256 x 256 pixels
    the first layer alone has 100 million parameters.
    """

    hidden: int
    """Number of outputs of both hidden layers."""

    def check(self, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported if the samples are not (float32 input, class label) pairs."""
        check_labelled("toynet", num_classes, sample)

    def caveat(self, sample_nbytes: int) -> str:
        """A remark if samples are so large that the first layer is most of the work; else empty."""
        weights = sample_nbytes // FLOAT_BYTES * self.hidden
        if weights < LARGE_WEIGHTS:
            return ""
        size = f"{weights / 1e6:.0f} million parameters in its first layer, as samples are large"
        return f"model=toynet: {size}; see model=resnet18"

    def build(self, input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
        """A new network: (batch, *input_shape) -> (batch, num_classes)."""
        return nn.Sequential(
            # Flatten needs two dimensions: a batch of scalars, (batch,), becomes (batch, 1).
            nn.Flatten() if input_shape else nn.Unflatten(0, (-1, 1)),
            nn.Linear(math.prod(input_shape), self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, require_classes(num_classes)),
        )
