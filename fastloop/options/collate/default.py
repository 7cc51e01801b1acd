"""`collate=default`: torch's default_collate."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch.utils.data import default_collate

from fastloop.core.types import Tree, option


@option
class DefaultCollate:
    """torch's default_collate, which stacks the samples leaf by leaf."""

    takes: ClassVar[Literal["canonical"]] = "canonical"
    tolerant: ClassVar[bool] = False
    is_default: ClassVar[bool] = True

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch of the samples."""
        return default_collate(samples)

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:  # noqa: ARG002
        """The batch, unchanged."""
        return batch
