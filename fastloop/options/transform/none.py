"""`transform=none`: no transform."""

from __future__ import annotations

from typing import ClassVar, Literal

from fastloop.core.types import Tree, option


@option
class NoTransform:
    """No transform: samples and batches stay unchanged."""

    where: ClassVar[Literal["device"]] = "device"
    is_identity: ClassVar[bool] = True

    def transform_sample(self, sample: Tree) -> Tree:
        """The sample."""
        return sample

    def transform_batch(self, batch: Tree) -> Tree:
        """The batch."""
        return batch
