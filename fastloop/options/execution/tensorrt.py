"""`execution=tensorrt`: the model compiled by NVIDIA's TensorRT; inference only."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from fastloop.core.optional import check_available, import_optional
from fastloop.core.types import Step, Unsupported, option

INSTALL = "pip install torch-tensorrt"
NEEDED_BY = "execution=tensorrt"


@option
class TensorRtExecution:
    """torch.compile with the backend of Torch-TensorRT; builds an engine per batch size in the
    warm-up."""

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:  # noqa: ARG002
        """Raise Unsupported for training, without the library and without a CUDA device."""
        if "training" in benchmarks:
            raise Unsupported(f"{NEEDED_BY} does not train: use benchmark=inference")
        check_available("torch_tensorrt", NEEDED_BY, INSTALL)
        if device.type != "cuda":
            raise Unsupported(f"{NEEDED_BY} needs a CUDA device, device is {device.type}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module, compiled to an engine at the first call with a shape."""
        import_optional("torch_tensorrt", NEEDED_BY, INSTALL)
        return torch.compile(module, backend="torch_tensorrt", dynamic=False)

    def step(self, step: Step, module: nn.Module) -> Step:  # noqa: ARG002
        """The step, unchanged."""
        return step
