"""`execution=cuda_graph`: the whole step is captured once as a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from fastloop.core.types import Step, Unsupported, option

WARM_STEPS = 3
"""Number of steps before the capture. They initialize everything, because a capture can't
initialize anything; torch's examples run three."""


@dataclass(frozen=True)
class CapturedStep:
    """A captured step and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    source: torch.Tensor
    """The inputs on the device, which the graph reads."""
    targets: torch.Tensor
    """The targets on the device, which the graph reads."""
    out: torch.Tensor
    """The output, which each run of the graph overwrites."""

    def fits(self, source: torch.Tensor, targets: torch.Tensor) -> bool:
        """True if the batch has the captured shapes."""
        return source.shape == self.source.shape and targets.shape == self.targets.shape

    def run(self, source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The output of the step; a copy, because the next run overwrites it."""
        self.source.copy_(source)
        self.targets.copy_(targets)
        self.graph.replay()
        return self.out.clone()


@option
class CudaGraphExecution:
    """The whole step as one CUDA graph: one launch per step instead of one per operation.

    The first batch of the warm-up sets the shapes; each batch is copied to the graph's inputs. An
    incomplete last batch runs eagerly; drop_last=true leaves it out.
    """

    averages_gradients: ClassVar[bool] = False

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:
        """Raise Unsupported without a CUDA device, and for steps that synchronize with it."""
        if device.type != "cuda":
            raise Unsupported(f"execution=cuda_graph needs a CUDA device, device is {device.type}")
        if precision == "fp16" and "training" in benchmarks:
            reason = "the gradient scaler synchronizes with the device; precision=bf16 has none"
            raise Unsupported(f"execution=cuda_graph, benchmark=training, precision=fp16: {reason}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module, unchanged."""
        return module

    def step(self, step: Step, module: nn.Module) -> Step:
        """The step, captured at its first call."""
        captured: list[CapturedStep] = []

        def replay(source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if not captured:
                captured.append(_capture(step, module, source, targets))
            if captured[0].fits(source, targets):
                return captured[0].run(source, targets)
            return step(source, targets)

        return replay


def _capture(
    step: Step, module: nn.Module, source: torch.Tensor, targets: torch.Tensor
) -> CapturedStep:
    """The step captured on copies of the batch; the module's state is restored."""
    source, targets = source.clone(), targets.clone()
    tensors = [*module.parameters(), *module.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(source.device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # torch's documentation of CUDA graphs demands a side stream before a capture.
            for _ in range(WARM_STEPS):
                step(source, targets)
        torch.cuda.current_stream().wait_stream(side)
        # stream: torch's default capture stream is created once, on the device used first.
        # thread_local: a loader's threads may pin memory meanwhile, and device_prefetch_by=thread
        # allocates and copies on another stream; "global", torch's default, fails on either.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            out = step(source, targets)
    # The steps before the capture have trained the module.
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)
    return CapturedStep(graph, source, targets, out)
