"""`benchmark=training`: a model steps on every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch

from fastloop.types import Setup, Tree, Unsupported, option


@option
class Training:
    """SGD on the cross entropy, a step a batch: what seed 000 trained with."""

    limit: ClassVar[Literal["gather", "replay"]] = "replay"

    def start(
        self, place: Callable[[Tree], Tree], setup: Setup
    ) -> tuple[Callable[[Tree], Any], list]:
        """A step on a fresh model from the seed; each step's loss stays on the device, unread.

        Raises Unsupported where the samples are not (float input, integer label) pairs.
        """
        model = _model(setup)
        optimizer = torch.optim.SGD(model.parameters(), lr=setup.learning_rate)
        losses: list[torch.Tensor] = []

        def step(batch: Tree) -> None:
            source, targets = place(batch)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(source), targets)
            loss.backward()
            optimizer.step()
            # No .item(): it would wait for the device in every step.
            losses.append(loss.detach())

        return step, losses


def _model(setup: Setup) -> torch.nn.Module:
    leaves = setup.sample
    if len(leaves) != 2 or setup.num_classes is None or leaves[0][0] != "float32" or leaves[1][1]:
        shown = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in leaves)
        raise Unsupported(
            f"benchmark=training needs (float32 input, class label) samples, got ({shown})"
        )
    torch.manual_seed(setup.seed)
    return setup.model.build(leaves[0][1], setup.num_classes).to(setup.device)
