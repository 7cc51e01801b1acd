"""`execution=data_parallel`: torch.nn.DataParallel over all GPUs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import ClassVar

import torch
from torch import nn

from fastloop.core.types import Step, Unsupported, option


@option
class DataParallelExecution:
    """torch.nn.DataParallel: one process splits each batch over all GPUs, which get copies of the
    model in every step."""

    averages_gradients: ClassVar[bool] = False

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:  # noqa: ARG002
        """Raise Unsupported with fewer than two GPUs."""
        count = torch.cuda.device_count()
        if count < 2 or device.type != "cuda":
            actual = f"got {count}, and device is {device.type}"
            raise Unsupported(f"execution=data_parallel needs two CUDA devices, {actual}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:
        """The module on all GPUs; outputs are gathered on the job's device."""
        # DataParallel gathers on the first of its devices.
        first = device.index or 0
        others = [index for index in range(torch.cuda.device_count()) if index != first]
        return nn.DataParallel(module, device_ids=[first, *others])

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step, unchanged."""
        return step
