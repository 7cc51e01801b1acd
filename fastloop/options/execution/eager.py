"""`execution=eager`: PyTorch's default, operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

import torch
from torch import nn

from fastloop.core.types import Step, option


@option
class EagerExecution:
    """Eager execution, PyTorch's default: operation by operation, without changes to the model or
    the step."""

    is_identity: ClassVar[bool] = True

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:
        """Accept every device, precision and benchmark."""

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module, unchanged."""
        return module

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step, unchanged."""
        return step
