"""`benchmark=inference`: the forward pass of a model on every batch."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from fastloop.core.benchmark import Model, Setup
from fastloop.core.types import Leaves, option
from fastloop.options.benchmark._model import (
    ModelSession,
    build_seeded,
    with_autocast,
)


@option
class Inference:
    """The forward pass of a model on each batch, in eval and inference mode.

    Targets are moved to the device but not used. Every output is summed up on the device, so that
    no computation can be skipped.
    """

    limit: ClassVar[Literal["gather", "replay"]] = "replay"

    def check(self, model: Model, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported if the model does not accept the samples."""
        model.check(num_classes, sample)

    def session(self, setup: Setup) -> ModelSession:
        """A new model in eval mode. Raises Unsupported as `check` does."""
        module = build_seeded(setup).to(setup.device).eval()
        forward = setup.execution.forward(module, setup.device)

        @torch.inference_mode()
        def sum_outputs(source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
            return forward(source).float().sum()

        step = setup.execution.step(with_autocast(sum_outputs, setup), module)
        return ModelSession(
            setup=setup,
            module=module,
            step=step,
            make_receive=lambda: (torch.zeros((), device=setup.device).add_, []),
        )
