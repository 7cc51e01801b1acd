"""`collate=default`: what torch's DataLoader does by itself."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch.utils.data import default_collate

from fastloop.types import Tree, option


@option
class Default:
    """Each leaf of the samples stacked into one tensor."""

    takes: ClassVar[Literal["canonical"]] = "canonical"
    tolerant: ClassVar[bool] = False

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch of these samples."""
        return default_collate(samples)

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:  # noqa: ARG002
        """Nothing is left."""
        return batch
