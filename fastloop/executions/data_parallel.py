"""`execution=data_parallel`: torch.nn.DataParallel over all GPUs, which seed 004 names."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from fastloop.types import Step, Unsupported, option


@option
class DataParallel:
    """Each batch is split over the GPUs by one process, the model copied to them in every step."""

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:  # noqa: ARG002
        """Raise Unsupported with fewer than two GPUs."""
        here = torch.cuda.device_count()
        if here < 2 or device.type != "cuda":
            told = f"{here} are here and device is {device.type}"
            raise Unsupported(f"execution=data_parallel needs two CUDA devices, {told}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:
        """The module on all GPUs; answers are gathered on the job's device."""
        own = device.index or 0
        others = [index for index in range(torch.cuda.device_count()) if index != own]
        return nn.DataParallel(module, device_ids=[own, *others])

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step itself."""
        return step
