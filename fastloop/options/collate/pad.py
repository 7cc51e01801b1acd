"""`collate=pad`: samples of different lengths, padded to one batch."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from fastloop.core.types import Tree, Unsupported, option
from fastloop.data.ragged import collate_by_leaf


@option
class PadCollate:
    """A collate that makes a pair (padded, lengths) of each leaf with at least one dimension.

    Leaves are padded with `value` along their first dimension, to the longest one of the batch.
    """

    takes: ClassVar[Literal["ragged"]] = "ragged"
    tolerant: ClassVar[bool] = False
    value: float
    """The number with which samples are padded."""

    def collate(self, samples: list[Tree]) -> Tree:
        """The batch of these samples, with a pair (padded, lengths) for each padded leaf.

        padded: (batch, longest, …). lengths: int64 (batch,). torch's default_collate makes the
        other leaves. Raises Unsupported if a leaf's dtype can't represent the value.
        """
        return collate_by_leaf(samples, self._pad)

    def finish(self, batch: Tree, uint8_scale: float | None) -> Tree:  # noqa: ARG002
        """The batch, unchanged."""
        return batch

    def caveat(self, sample_nbytes: int) -> str:
        """The caveat that bytes and limit are based on samples without padding.

        sample_nbytes: mean size of a sample without padding, in bytes.
        """
        mean = f"{sample_nbytes:,} bytes per sample, the mean without padding"
        return f"padded: bytes and limit are based on {mean}"

    def _pad(self, tensors: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The pair (padded, lengths) of a leaf, from the leaf's tensor in each sample."""
        dtype = tensors[0].dtype
        # torch would silently convert the value.
        if not _can_represent(dtype, self.value):
            kind = str(dtype).removeprefix("torch.")
            raise Unsupported(f"collate.value={self.value:g}: {kind} can't represent it")
        padded = pad_sequence(tensors, batch_first=True, padding_value=self.value)
        return padded, torch.tensor([len(tensor) for tensor in tensors])


def _can_represent(dtype: torch.dtype, value: float) -> bool:
    """True for a floating-point dtype, and for any other dtype that can hold the value."""
    if dtype.is_floating_point or dtype.is_complex:
        return True
    if dtype == torch.bool:
        return value in (0, 1)
    return value.is_integer() and torch.iinfo(dtype).min <= value <= torch.iinfo(dtype).max
