"""`benchmark=training`: a model steps on every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch

from fastloop.types import Setup, Tree, Unsupported, option

LABEL = ("int64", ())
"""dtype and shape of a class label."""


@option
class Training:
    """SGD on the cross entropy, a step a batch: what seed 000 trained with."""

    limit: ClassVar[Literal["gather", "replay"]] = "replay"

    def check(
        self, num_classes: int | None, sample: tuple[tuple[str, tuple[int, ...]], ...] | None
    ) -> None:
        """Raise Unsupported where the samples are not (float32 input, class label) pairs."""
        got = "samples without classes" if num_classes is None else ""
        if sample and (len(sample) != 2 or sample[0][0] != "float32" or sample[1] != LABEL):
            got = f"({', '.join(f'{dtype}{list(shape)}' for dtype, shape in sample)})"
        if got:
            wanted = "benchmark=training needs (float32 input, int64 class label) samples"
            raise Unsupported(f"{wanted}, got {got}; benchmark=traversal takes any")

    def start(
        self, place: Callable[[Tree], Tree], setup: Setup
    ) -> tuple[Callable[[Tree], Any], list]:
        """A step on a fresh model from the seed; each step's loss stays on the device, unread.

        Raises Unsupported as `check` does.
        """
        model = self._model(setup)
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

    def _model(self, setup: Setup) -> torch.nn.Module:
        self.check(setup.num_classes, setup.sample)
        assert setup.num_classes is not None
        torch.manual_seed(setup.seed)
        return setup.model.build(setup.sample[0][1], setup.num_classes).to(setup.device)
