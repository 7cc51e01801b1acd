"""The session of training and inference: a model, built once and reset at every start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastloop.core.benchmark import Setup
from fastloop.core.types import ExtractPair, Step, Tree, Unsupported
from fastloop.processes.rank_group import world_size

AUTOCAST_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of autocast by the name of the precision."""

BATCH_ERRORS = {
    "Expected more than 1 value per channel": "BatchNorm can't train on a batch of one sample:"
    " drop_last=true leaves out an incomplete last batch, another batch_size may avoid it",
    "index out of range in self": "the data has indices beyond the model's embedding: with"
    " model=transformer, model.vocabulary has to be at least the largest + 1",
}
"""Parts of torch's messages about a batch that a model can't use, and their explanation."""

Place = Callable[[Tree], Tree]
"""Function that brings a host batch to the device."""
Consume = Callable[[Tree], Any]
"""Function that runs the step on a host batch."""
Receive = Callable[[torch.Tensor], Any]
"""Function that is called with the result of each step."""


@dataclass(kw_only=True)
class ModelSession:
    """A model on the device and the step that runs it, shared by all starts of a benchmark.

    Each start resets the model to its seeded state. The tensors are reset in place, so that code
    compiled or captured during the warm-up stays valid in the timed window.
    """

    setup: Setup
    module: nn.Module
    step: Step
    """The step, executed as the job's `execution` demands."""
    make_receive: Callable[[], tuple[Receive, list]]
    """Called at each start: returns the function that receives the results, and the list of losses
    that this function fills."""
    ddp: DistributedDataParallel | None = None
    """The module wrapped for several ranks that train together; None: a single rank, or no
    training."""
    scaler: torch.amp.GradScaler | None = None
    """The gradient scaler of fp16; None: the loss is not scaled."""
    is_fresh: bool = True
    """True until the first start: the module is still as built."""

    def start(self, place: Place) -> tuple[Consume, list]:
        """A function that runs the step on a host batch, and the list of losses that it fills."""
        if not self.is_fresh:
            self.reset()
        self.is_fresh = False
        receive, losses = self.make_receive()
        return _consume_by(place, self.step, self.setup.pair, receive), losses

    def reset(self) -> None:
        """Reset the module and the scaler to their seeded state."""
        seeded = build_seeded(self.setup)
        with torch.no_grad():
            # The tensors are changed in place: compiled or captured code refers to these objects.
            for tensor, initial in zip(_tensors(self.module), _tensors(seeded), strict=True):
                tensor.copy_(initial)
        if self.scaler is not None:
            self.scaler.load_state_dict(torch.amp.GradScaler(self.setup.device.type).state_dict())


def build_seeded(setup: Setup) -> nn.Module:
    """A new module on the host, equal for equal seeds.

    Raises Unsupported if the model does not accept the samples.
    """
    setup.model.check(setup.num_classes, setup.sample)
    torch.manual_seed(setup.seed)
    return setup.model.build(setup.sample[0][1], setup.num_classes)


def wrap_ddp(module: nn.Module, device: torch.device) -> DistributedDataParallel | None:
    """The module with gradients averaged over the ranks in every step; None for one process."""
    if world_size() == 1:
        return None
    # BatchNorm stays local to a rank, as usual with DDP; running statistics are rank 0's.
    return DistributedDataParallel(module, device_ids=[device] if device.type == "cuda" else None)


def with_autocast(
    function: Callable[..., torch.Tensor], setup: Setup
) -> Callable[..., torch.Tensor]:
    """The function under autocast, or the function itself if the precision is float32."""
    if setup.precision not in AUTOCAST_DTYPES:
        return function
    return torch.autocast(setup.device.type, AUTOCAST_DTYPES[setup.precision])(function)


def _consume_by(place: Place, step: Step, pair: ExtractPair, receive: Receive) -> Consume:
    """A function that places a host batch, runs the step, and passes the result to `receive`."""

    def consume(batch: Tree) -> None:
        source, targets = pair(place(batch))
        try:
            receive(step(source, targets))
        except Exception as error:
            # Many errors of torch mean that the data does not fit the model, but do not say so. For
            # these, _raise_if_unfit raises an error that does.
            _raise_if_unfit(error)
            raise

    return consume


def _raise_if_unfit(error: Exception) -> None:
    """Raise Unsupported if the error means that the model can't use the batch."""
    for message, reason in BATCH_ERRORS.items():
        if message in str(error):
            raise Unsupported(reason) from error


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
