"""`collate=pad`: samples of different length in one batch."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from fastloop.ragged import by_leaf
from fastloop.types import Tree, option


@option
class Pad:
    """Each leaf that has a dimension becomes (padded, lengths): `value` fills every sample up to
    the longest of its batch, along the first dimension."""

    takes: ClassVar[Literal["ragged"]] = "ragged"
    tolerant: ClassVar[bool] = False
    value: float

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch: of such a leaf (batch, longest, …) and int64 (batch,), others by
        default_collate."""
        return by_leaf(samples, self._padded)

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:  # noqa: ARG002
        """Nothing is left."""
        return batch

    def _padded(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        padded = pad_sequence(tensors, batch_first=True, padding_value=self.value)
        return padded, torch.tensor([len(one) for one in tensors])
