"""A column that lies in memory, or in a mapped file: rows of bytes, whatever their dtype."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastloop.fastloader.columns import Kind
from fastloop.fastloader.places import Place, place_of

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor or an array."""

    flat: np.ndarray
    """(num_samples, row_nbytes) uint8, a view of the source's own memory; (num_samples,) words
    where a row is one: as bytes it would be copied by a call for each."""
    kind: Kind
    memory: torch.Tensor | None = None
    """The source as it was given, where batches may be views of it; None: see _memory."""
    place: Place | None = None
    """In the file that is mapped, if one is."""

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.flat)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Copy those rows."""
        # clip: the default would write every batch to a copy of its own first. take, and never
        # torch.index_select(out=): for rows of 8 B to 150 KB in memory or mapped, neither is faster
        # by more than the noise, but for rows of 16 to 256 B, where take is, by 1.1 to 4 times.
        into = out if self.flat.ndim == 2 else out.view(self.flat.dtype)[:, 0]
        self.flat.take(indices, axis=0, out=into, mode="clip")

    def __reduce__(self) -> tuple[Callable[..., Rows], tuple[Any, ...]]:
        """In another process what is mapped is mapped again, and its bytes stay here."""
        if self.place is None:
            return Rows, (self.flat, self.kind)
        return _mapped, (self.place, self.flat.dtype, self.flat.shape, self.kind)


def rows_of(one: torch.Tensor | np.ndarray) -> Rows:
    """Its rows, in its own memory where that is contiguous.

    Raises ValueError for what has no first dimension, is not on the CPU, or requires grad.
    """
    tensor = _tensor(one)
    if tensor.dim() == 0 or tensor.device.type != "cpu":
        raise ValueError(f"a source has samples in its first dimension, on the CPU, got {tensor}")
    if tensor.requires_grad:
        raise ValueError("a source that requires grad: batches have no gradient, pass its detach()")
    memory = _memory(one, tensor)
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    kind = Kind(tensor.dtype, tuple(tensor.shape[1:]))
    if not tensor.nbytes:
        return Rows(np.zeros((len(tensor), kind.nbytes), np.uint8), kind, memory)
    width = math.prod(kind.shape)  # of size 1, a dimension of what is contiguous has any stride
    flat = tensor.as_strided((len(tensor), width), (width, 1))
    return Rows(_words(flat.view(torch.uint8).numpy()), kind, memory, place_of(one))


def _mapped(place: Place, dtype: np.dtype, shape: tuple[int, ...], kind: Kind) -> Rows:
    flat = np.memmap(place.path, dtype, "r", place.offset, shape)
    return Rows(flat, kind, place=place_of(flat))


def _tensor(one: torch.Tensor | np.ndarray) -> torch.Tensor:
    if isinstance(one, torch.Tensor):
        return one
    if any(step < 0 for step in one.strides):  # torch has none
        one = np.ascontiguousarray(one)
    with warnings.catch_warnings():  # nobody writes to the source, whatever map it lies behind
        warnings.filterwarnings("ignore", "The given NumPy array is not writ")
        return torch.from_numpy(one)


def _memory(one: torch.Tensor | np.ndarray, tensor: torch.Tensor) -> torch.Tensor | None:
    """None for what may not be written to, as any batch may; and for a mapped file, which would be
    read from its disk where a batch is used, instead of ahead of that."""
    if isinstance(one, np.memmap) or (isinstance(one, np.ndarray) and not one.flags.writeable):
        return None
    repeated = (
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    return None if any(repeated) else tensor.detach().as_subclass(torch.Tensor)


def _words(rows: np.ndarray) -> np.ndarray:
    word = WORDS.get(rows.shape[1])
    # a word that is not aligned would be, by a copy of all of them for each block
    if word is None or rows.ctypes.data % rows.shape[1]:
        return rows
    return rows.view(word)[:, 0]
