"""What a source is made of: columns, which know how their samples get into memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

Tree = Any


@dataclass(frozen=True)
class Kind:
    """What a column's samples are once they are delivered."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    channels_last: bool = False
    """Of three dimensions, (channels, height, width): the channels of a pixel lie together."""

    @property
    def nbytes(self) -> int:
        """Of a sample."""
        return self.dtype.itemsize * math.prod(self.shape)

    def seen(self, rows: torch.Tensor) -> torch.Tensor:
        """(n, nbytes) uint8 as (n, *shape) of the dtype, the same memory."""
        if not rows.shape[1]:  # which no dtype divides
            return torch.empty((len(rows), *self.shape), dtype=self.dtype)
        if self.channels_last:
            channels, height, width = self.shape
            lying = rows.view(self.dtype).view(len(rows), height, width, channels)
            return lying.permute(0, 3, 1, 2)
        return rows.view(self.dtype).view(len(rows), *self.shape)


@runtime_checkable
class Column(Protocol):
    """A leaf of a source that is no tensor or array: it makes samples when they are asked for.

    One that has `slow = True` takes longer for a sample than a copy of it: then each batch is made
    by itself, and small ones too by all threads.
    """

    @property
    def kind(self) -> Kind:
        """What it delivers."""
        ...

    def __len__(self) -> int:
        """How many samples there are."""
        ...

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the samples of `indices`, int64 and looked at before, into out.

        out: (len(indices), kind.nbytes) uint8, to be kept by nobody. Several threads call it at
        once. `kind.seen(torch.from_numpy(out))` is the same memory as a tensor.
        """
        ...
