"""What a source is made of: columns, which know how their samples get into memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

Tree = Any
WORDS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


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

    @cached_property
    def as_numpy(self) -> np.dtype:
        """numpy's own dtype, or where it has none (bfloat16) one of as many bytes."""
        try:
            return torch.empty(0, dtype=self.dtype, device="cpu").numpy().dtype
        except TypeError:  # numpy's list of names is no help: whoever imports ml_dtypes adds to it
            return np.dtype(WORDS[self.dtype.itemsize])

    def lying(self, rows: np.ndarray) -> np.ndarray:
        """(n, nbytes) uint8 as (n, *shape) of as_numpy, the same memory."""
        if not rows.shape[1]:
            return np.empty((len(rows), *self.shape), self.as_numpy)
        if self.channels_last:
            channels, height, width = self.shape
            shape = len(rows), height, width, channels
            return rows.view(self.as_numpy).reshape(shape).transpose(0, 3, 1, 2)
        return rows.view(self.as_numpy).reshape(len(rows), *self.shape)

    def tensor(self, lying: np.ndarray) -> torch.Tensor:
        """The same memory as a tensor of the dtype, which holds that very array."""
        seen = torch.from_numpy(lying)
        return seen if seen.dtype == self.dtype else seen.view(self.dtype)

    def seen(self, rows: np.ndarray) -> torch.Tensor:
        """(n, nbytes) uint8 as (n, *shape) of the dtype, the same memory."""
        return self.tensor(self.lying(rows))


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
        once. `kind.seen(out)` is the same memory as a tensor.
        """
        ...
