"""`collate=skip_broken`: samples that can't be decoded are left out of their batch."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch.utils.data import default_collate

from fastloop.types import Tree, option


@option
class SkipBroken:
    """default_collate of what could be decoded; batches with broken samples are shorter."""

    takes: ClassVar[Literal["canonical"]] = "canonical"
    tolerant: ClassVar[bool] = True

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch without its broken samples, which come as None; None where none is left."""
        whole = [sample for sample in samples if sample is not None]
        return default_collate(whole) if whole else None

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:  # noqa: ARG002
        """Nothing is left."""
        return batch
