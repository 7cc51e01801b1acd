"""Windows of a long array of tokens as a column, for the training of language models."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from fastloop.core.seeds import random_bits
from fastloop.fastloader.columns.array import array_column
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.mapped_file import find_file, pack_maps, unpack_maps
from fastloop.fastloader.columns.native_rows import (
    SOURCE_TYPES,
    Conversion,
    NativeRows,
    fill_rows,
    has_native_form,
)

INTEGERS = set(SOURCE_TYPES) - {torch.bool, torch.float16, torch.bfloat16}
INTEGERS -= {torch.float32, torch.float64}
"""The types of tokens that the core converts."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Samples of shape (length,) cut from a one-dimensional array, tensor or memory map of tokens.

    Args:
        tokens: one-dimensional, of an integer dtype.
        length: tokens of a window.
        stride: window i begins at token i * stride; None means `length`, so that each token is
            delivered once per epoch. The loader's order decides in which sequence windows come.
        count: number of windows, each at a random position that depends only on its index and
            `seed`. Excludes `stride`.
        dtype: of the delivered windows; None keeps the stored dtype.
        first: tokens skipped in front of each window.
        beyond: tokens that must follow each window.

    Raises ValueError if the tokens are not one-dimensional, or fewer than one window needs, and for
    numbers that are too low or not integers; TypeError for tokens of another type, such as a list.

    >>> inputs, targets = Windows.pairs(np.arange(1000), length=128)
    >>> len(inputs)
    7
    >>> loader = FastLoader((inputs, targets), batch_size=4, shuffle=True)
    """

    tokens: Any
    length: int
    stride: int | None = None
    count: int | None = None
    seed: int = 0
    dtype: torch.dtype | None = torch.int64
    first: int = 0
    beyond: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.tokens, np.ndarray | torch.Tensor):
            kind = type(self.tokens).__name__
            raise TypeError(
                f"tokens={kind}: allowed: a one-dimensional array, tensor or memory map"
            )
        least = {"length": 1, "stride": 1, "count": 1, "first": 0, "beyond": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            if value is None and name in ("stride", "count"):
                continue
            if not isinstance(value, Integral) or value < lowest:
                raise ValueError(f"{name}={value}: allowed is {lowest} or more")
        if self.stride is not None and self.count is not None:
            raise ValueError("stride with count: windows are at regular or at random positions")
        if len(self.tokens.shape) != 1 or self._num_positions < 1:
            needed = self.length + self.first + self.beyond
            shape = tuple(self.tokens.shape)
            raise ValueError(
                f"windows of {needed} tokens are cut from a one-dimensional array, got {shape}"
            )

    @classmethod
    def pairs(cls, tokens: Any, length: int, **settings: Any) -> tuple[Windows, Windows]:
        """(inputs, targets): the same windows twice, the targets shifted by one token."""
        return cls(tokens, length, beyond=1, **settings), cls(tokens, length, first=1, **settings)

    @property
    def spec(self) -> SampleSpec:
        """Samples of shape (length,)."""
        return SampleSpec(self.dtype or array_column(self.tokens).spec.dtype, (self.length,))

    def __len__(self) -> int:
        return self.count or (self._num_positions - 1) // (self.stride or self.length) + 1

    def starts(self, indices: np.ndarray) -> np.ndarray:
        """int64: the token at which each of these windows begins."""
        if self.count is None:
            return indices * (self.stride or self.length)
        return (random_bits(indices, self.seed) % np.uint64(self._num_positions)).astype(np.int64)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Copy the windows at `indices` to `out`, converted to the dtype."""
        if not fill_rows(self, indices, out):
            file = find_file(self._array())
            starts = self.starts(indices) + self.first
            if file is not None:
                file.check()
            windows = sliding_window_view(self._array(), self.length)[starts]
            # copy_ converts the windows as it copies them, to the same bits as the native core.
            self.spec.view_tensor(out).copy_(torch.from_numpy(windows))

    def native_rows(self) -> NativeRows | None:
        """The windows for the native core; None for types that it does not convert."""
        array = self._array()
        spec = self.spec
        if not has_native_form(array, spec):
            return None
        stored = array_column(self.tokens[:1]).spec.dtype
        conversion = None
        if spec.dtype != stored:
            # The core converts integers to int32 and int64 only. torch does all other conversions.
            if stored not in INTEGERS or spec.dtype not in (torch.int32, torch.int64):
                return None
            conversion = Conversion(
                source=stored, target=spec.dtype, channels=1, pixels=self.length
            )
        # Windows at random positions may begin at any token, regular ones at multiples of the
        # stride.
        stride = 1 if self.count else self.stride or self.length
        itemsize = array.itemsize
        return NativeRows(
            memory=array,
            num_rows=len(self),
            spec=spec,
            source_nbytes=self.length * itemsize,
            stride=stride * itemsize,
            begin=self.first * itemsize,
            positions=self._num_positions if self.count else 0,
            seed=self.seed % 2**64,
            conversion=conversion,
            file=find_file(array),
        )

    def _array(self) -> np.ndarray:
        return self.tokens.numpy() if isinstance(self.tokens, torch.Tensor) else self.tokens

    def __getstate__(self) -> dict[str, Any]:
        return pack_maps(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unpack_maps(state))

    @property
    def _num_positions(self) -> int:
        return len(self.tokens) - self.length - self.first - self.beyond + 1
