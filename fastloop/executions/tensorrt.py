"""`execution=tensorrt`: NVIDIA's TensorRT runs the model, as seed 002 tells; inference only."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from fastloop.optional import check_found, imported
from fastloop.types import Step, Unsupported, option

INSTALL = "pip install torch-tensorrt"
NEEDED_BY = "execution=tensorrt"


@option
class TensorRt:
    """torch.compile with Torch-TensorRT's backend, in the warm-up, an engine a batch size."""

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:  # noqa: ARG002
        """Raise Unsupported for training, without the library and without a CUDA device."""
        if "training" in benchmarks:
            raise Unsupported(f"{NEEDED_BY} runs no training: benchmark=inference")
        check_found("torch_tensorrt", NEEDED_BY, INSTALL)
        if device.type != "cuda":
            raise Unsupported(f"{NEEDED_BY} needs a CUDA device, device is {device.type}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module, built into an engine when it is first called with a shape."""
        imported("torch_tensorrt", NEEDED_BY, INSTALL)
        return torch.compile(module, backend="torch_tensorrt", dynamic=False)

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step itself."""
        return step
