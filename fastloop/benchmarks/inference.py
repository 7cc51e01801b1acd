"""`benchmark=inference`: a model answers every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from fastloop.network import at_precision, begun, check_fed
from fastloop.protocols import Model
from fastloop.types import Leaves, Setup, Tree, option


@option
class Inference:
    """The model forward only, in eval mode and inference mode; targets are placed and not used.

    Every answer is summed up on the device, so that none can be left undone.
    """

    limit: ClassVar[Literal["gather", "replay"]] = "replay"

    def check(self, model: Model, num_classes: int | None, sample: Leaves | None) -> None:
        """Raise Unsupported where the model can't be fed with such samples."""
        model.check(num_classes, sample)

    def start(
        self, place: Callable[[Tree], Tree], setup: Setup
    ) -> tuple[Callable[[Tree], Any], list]:
        """What answers a batch; no losses. Raises Unsupported as `check` does."""
        answer = begun(setup, "inference", lambda module: _answering(module, setup))
        total, pair = torch.zeros((), device=setup.device), setup.pair

        def step(batch: Tree) -> None:
            source, targets = pair(place(batch))
            try:
                total.add_(answer(source, targets))
            except Exception as error:
                check_fed(error)
                raise

        return step, []


def _answering(
    module: nn.Module, setup: Setup
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """From a batch to the sum of the answers."""
    module.eval()
    forward = setup.execution.forward(module, setup.device)

    @torch.inference_mode()
    def answer(source: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
        return forward(source).float().sum()

    return setup.execution.step(at_precision(answer, setup), module)
