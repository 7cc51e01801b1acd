"""`benchmark=training`: a model steps on every batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from fastloop.network import at_precision, begun, check_fed, synchronized
from fastloop.protocols import Model
from fastloop.types import Leaves, Setup, Tree, option


@dataclass(frozen=True)
class Stepper:
    """One step, and how its scaler begins anew."""

    step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    begin: Callable[[], None]


@option
class Training:
    """SGD on the cross entropy, a step a batch: what seed 000 trained with; several ranks average
    their gradients in every step (DistributedDataParallel)."""

    limit: ClassVar[Literal["gather", "replay"]] = "replay"

    def check(self, model: Model, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported where the model can't be fed with such samples."""
        model.check(num_classes, sample)

    def start(
        self, place: Callable[[Tree], Tree], setup: Setup
    ) -> tuple[Callable[[Tree], Any], list]:
        """A step on the model as it is at the seed; each step's loss stays on the device, unread.

        Raises Unsupported as `check` does.
        """
        stepper = begun(setup, "training", lambda module: _stepper(module, setup))
        stepper.begin()
        one, pair, losses = stepper.step, setup.pair, []

        def step(batch: Tree) -> None:
            source, targets = pair(place(batch))
            try:
                # No .item(): it would wait for the device in every step.
                losses.append(one(source, targets))
            except Exception as error:
                check_fed(error)
                raise

        return step, losses


def _stepper(module: nn.Module, setup: Setup) -> Stepper:
    optimizer = torch.optim.SGD(module.parameters(), lr=setup.learning_rate)
    forward = setup.execution.forward(synchronized(module, setup), setup.device)
    cross_entropy = torch.nn.functional.cross_entropy
    loss_of = at_precision(lambda source, targets: cross_entropy(forward(source), targets), setup)

    def step(source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(source, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def plain() -> None:
        """Nothing is kept from step to step but the module."""

    if setup.precision != "fp16":
        return Stepper(setup.execution.step(step, module), plain)
    scaler = torch.amp.GradScaler(setup.device.type)
    unused = scaler.state_dict()

    def scaled(source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(source, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return Stepper(setup.execution.step(scaled, module), lambda: scaler.load_state_dict(unused))
