"""`transform=none`: the samples as the dataset has them."""

from __future__ import annotations

from typing import ClassVar, Literal

from fastloop.types import Tree, option


@option
class NoTransform:
    """Nothing is done."""

    where: ClassVar[Literal["device"]] = "device"

    def of_a_sample(self, sample: Tree) -> Tree:
        """The sample."""
        return sample

    def of_a_batch(self, batch: Tree) -> Tree:
        """The batch."""
        return batch
