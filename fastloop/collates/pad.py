"""`collate=pad`: samples of different length in one batch."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from fastloop.ragged import by_leaf
from fastloop.types import Tree, Unsupported, option


@option
class Pad:
    """Each leaf that has a dimension becomes (padded, lengths): `value` fills every sample up to
    the longest of its batch, along the first dimension."""

    takes: ClassVar[Literal["ragged"]] = "ragged"
    tolerant: ClassVar[bool] = False
    value: float

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch: of such a leaf (batch, longest, …) and int64 (batch,), others by
        default_collate.

        Raises Unsupported where a leaf's dtype does not have the value.
        """
        return by_leaf(samples, self._padded)

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:  # noqa: ARG002
        """Nothing is left."""
        return batch

    def _padded(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = tensors[0].dtype
        if not _holds(dtype, self.value):  # torch would cut it to another one
            kind = str(dtype).removeprefix("torch.")
            raise Unsupported(f"collate.value={self.value:g}: {kind} has no such number")
        padded = pad_sequence(tensors, batch_first=True, padding_value=self.value)
        return padded, torch.tensor([len(one) for one in tensors])


def _holds(dtype: torch.dtype, value: float) -> bool:
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype == torch.bool:
        return value in (0, 1)
    return value.is_integer() and torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max
