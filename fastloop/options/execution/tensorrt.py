"""`execution=tensorrt`: the model compiled by NVIDIA's TensorRT; inference only."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from fastloop.core.optional_libraries import Library
from fastloop.core.types import Step, Unsupported, option

LIBRARY = Library("torch_tensorrt", "execution=tensorrt", "pip install torch-tensorrt")


@option
class TensorRtExecution:
    """torch.compile with the backend of Torch-TensorRT, which builds an engine for each batch size
    in the warm-up."""

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:  # noqa: ARG002
        """Raise Unsupported for training, without the library, and on a device other than CUDA."""
        if "training" in benchmarks:
            raise Unsupported(f"{LIBRARY.option} does not train: use benchmark=inference")
        LIBRARY.check()
        if device.type != "cuda":
            raise Unsupported(f"{LIBRARY.option} needs a CUDA device, device is {device.type}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module, compiled to an engine at the first call with a shape."""
        LIBRARY.load()
        return torch.compile(module, backend="torch_tensorrt", dynamic=False)

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step, unchanged."""
        return step
