"""`benchmark=training`: one training step of a model per batch."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch.nn.functional import cross_entropy

from fastloop.core.benchmark import Model, Setup
from fastloop.core.types import Leaves, Step, option
from fastloop.options.benchmark._model import (
    ModelSession,
    Receive,
    build_seeded,
    with_autocast,
    wrap_ddp,
)


@option
class Training:
    """A training step of a model on each batch: SGD on the cross entropy.

    Ranks average their gradients in every step (DistributedDataParallel).
    """

    limit: ClassVar[Literal["gather", "replay"]] = "replay"
    """The machine limit: the same steps on batches that are on the device already."""
    trains: ClassVar[bool] = True
    """True: ranks average their gradients in every step."""

    def check(self, model: Model, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported if the model does not accept the samples.

        num_classes, sample: None: not known yet, as before the data is prepared.
        """
        model.check(num_classes, sample)

    def session(self, setup: Setup) -> ModelSession:
        """A new model with its optimizer. Raises Unsupported as `check` does."""
        module = build_seeded(setup).to(setup.device)
        ddp = wrap_ddp(module, setup.device)
        forward = setup.execution.forward(module if ddp is None else ddp, setup.device)
        loss_of = with_autocast(
            lambda source, targets: cross_entropy(forward(source), targets), setup
        )
        optimizer = torch.optim.SGD(module.parameters(), lr=setup.learning_rate)
        # Only fp16's gradients underflow and need a scaler: bf16 has float32's range of exponents.
        scaler = torch.amp.GradScaler(setup.device.type) if setup.precision == "fp16" else None
        step = setup.execution.step(_training_step(loss_of, optimizer, scaler), module)
        return ModelSession(
            setup=setup,
            module=module,
            step=step,
            make_receive=_make_loss_list,
            ddp=ddp,
            scaler=scaler,
        )


def _training_step(
    loss_of: Step, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
) -> Step:
    """A function that trains on a batch and returns the loss.

    scaler: scales the loss, so that small gradients do not underflow; None: no scaling.
    """

    def step(source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(source, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if scaler is None:
        return step

    def step_with_scaler(source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(source, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step_with_scaler


def _make_loss_list() -> tuple[Receive, list]:
    """A receiver of losses, and the list to which it appends them."""
    # The losses stay on the device: .item() would synchronize with it in every step.
    losses: list[torch.Tensor] = []
    return losses.append, losses
