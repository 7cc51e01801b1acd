"""A column that lies in memory, or in a mapped file: rows of bytes, whatever their dtype."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch

from fastloop.fastloader.columns import Kind

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor or an array."""

    flat: np.ndarray
    """(num_samples, row_nbytes) uint8, a view of the source's own memory; (num_samples,) words
    where a row is one: as bytes it would be copied by a call for each."""
    kind: Kind

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.flat)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Copy those rows."""
        # clip: the default would write every batch to a copy of its own first
        np.take(self.flat, indices, axis=0, out=_words(out), mode="clip")


def rows_of(one: torch.Tensor | np.ndarray) -> Rows:
    """Its rows, in its own memory where that is contiguous.

    Raises ValueError for what has no first dimension, or is not on the CPU.
    """
    tensor = _tensor(one)
    if tensor.dim() == 0 or tensor.device.type != "cpu":
        raise ValueError(f"a source has samples in its first dimension, on the CPU, got {tensor}")
    tensor = tensor.detach().contiguous()
    kind = Kind(tensor.dtype, tuple(tensor.shape[1:]))
    if not kind.nbytes:
        return Rows(np.zeros((len(tensor), 0), np.uint8), kind)
    flat = tensor.view(len(tensor), math.prod(kind.shape))  # -1 is not known where there are none
    return Rows(_words(flat.view(torch.uint8).numpy()), kind)


def _tensor(one: torch.Tensor | np.ndarray) -> torch.Tensor:
    if isinstance(one, torch.Tensor):
        return one
    with warnings.catch_warnings():  # nobody writes to the source, whatever map it lies behind
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        return torch.from_numpy(one)


def _words(rows: np.ndarray) -> np.ndarray:
    word = WORDS.get(rows.shape[1])
    return rows if word is None else rows.view(word)[:, 0]
