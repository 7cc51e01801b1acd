"""`execution=cuda_graph`: the whole step is recorded once and launched as one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import nn

from fastloop.types import Step, Unsupported, option

WARM_STEPS = 3
"""Before a capture, in which nothing may be set up any more: torch's own examples take three."""


@dataclass(frozen=True)
class Captured:
    """A recorded step with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    source: torch.Tensor
    targets: torch.Tensor
    out: torch.Tensor

    def fits(self, source: torch.Tensor, targets: torch.Tensor) -> bool:
        """True for a batch of the recorded shapes."""
        return source.shape == self.source.shape and targets.shape == self.targets.shape

    def run(self, source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What the step gives; a copy, because the next run overwrites it."""
        self.source.copy_(source)
        self.targets.copy_(targets)
        self.graph.replay()
        return self.out.clone()


@option
class CudaGraph:
    """A step is one launch instead of one an operation; each batch is copied to where it reads.

    The first batch of the warm-up sets the shapes. A batch of others, which is the last short one,
    steps eagerly; drop_last=true leaves it out.
    """

    def check(self, device: torch.device, precision: str, benchmarks: Collection[str]) -> None:
        """Raise Unsupported without a CUDA device, and for what asks the device in every step."""
        if device.type != "cuda":
            raise Unsupported(f"execution=cuda_graph needs a CUDA device, device is {device.type}")
        if precision == "fp16" and "training" in benchmarks:
            why = (
                "the gradients' scaler waits for the device in every step; precision=bf16 has none"
            )
            raise Unsupported(f"execution=cuda_graph, benchmark=training, precision=fp16: {why}")

    def forward(self, module: nn.Module, device: torch.device) -> Callable[..., torch.Tensor]:  # noqa: ARG002
        """The module itself."""
        return module

    def step(self, step: Step, module: nn.Module) -> Step:
        """The step, captured when it is first called."""
        captured: list[Captured] = []

        def replay(source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            if not captured:
                captured.append(_captured(step, module, source, targets))
            one = captured[0]
            if one.fits(source, targets):
                return one.run(source, targets)
            return step(source, targets)

        return replay


def _captured(
    step: Step, module: nn.Module, source: torch.Tensor, targets: torch.Tensor
) -> Captured:
    """The step on copies of this batch; the module is left as it was."""
    source, targets = source.clone(), targets.clone()
    tensors = [*module.parameters(), *module.buffers()]
    before = [one.detach().clone() for one in tensors]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(source.device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_STEPS):
                step(source, targets)
        torch.cuda.current_stream().wait_stream(side)
        # This stream: torch's own is made once, on whichever device was first.
        # thread_local: meanwhile a loader's threads may pin memory, and device_prefetch_by=thread
        # allocates and copies on a stream of its own; "global", torch's default, fails on either.
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            out = step(source, targets)
    with torch.no_grad():
        for one, value in zip(tensors, before, strict=True):
            one.copy_(value)
    return Captured(graph, source, targets, out)
