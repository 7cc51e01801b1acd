"""`collate=skip_broken`: samples that can't be decoded are left out of their batch."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch.utils.data import default_collate

from fastloop.core.types import Tree, option
from fastloop.data.dataset_samples import is_broken


@option
class SkipBrokenCollate:
    """torch's default_collate without broken samples, which are those that can't be decoded.

    A batch with broken samples is smaller than batch_size.
    """

    takes: ClassVar[Literal["canonical"]] = "canonical"
    tolerant: ClassVar[bool] = True

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch without its broken samples; None if no sample is left.

        A broken sample is None, or is a tuple, list or dict with a None in it.
        """
        decoded = [sample for sample in samples if not is_broken(sample)]
        return default_collate(decoded) if decoded else None

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:  # noqa: ARG002
        """The batch, unchanged."""
        return batch
