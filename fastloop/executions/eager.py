"""`execution=eager`: operation by operation, as PyTorch runs by itself."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from fastloop.types import Step, option


@option
class Eager:
    """Nothing is done to the model or the step."""

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:
        """It runs anywhere."""

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module itself."""
        return module

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step itself."""
        return step
