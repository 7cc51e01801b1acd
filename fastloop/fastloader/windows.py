"""Windows of a long row of tokens as a column, as language models are trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from fastloop.fastloader.columns import Kind
from fastloop.fastloader.rows import rows_of
from fastloop.fastloader.travel import packed, unpacked

ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class Windows:
    """(length,) samples out of a one-dimensional array, tensor or memory map of tokens.

    Window i begins at token i * stride (None: length, so that each token comes once an epoch);
    which comes when is the loader's order. With `count` there are so many windows, and i begins at
    a place that is drawn from i and the seed: anywhere, and the same whenever it is asked for.
    dtype: of what is delivered; None: as it is stored.

    Raises ValueError where the tokens are not one row, or fewer than a window.
    """

    tokens: Any
    length: int
    stride: int | None = None
    count: int | None = None
    seed: int = 0
    dtype: torch.dtype | None = torch.int64
    first: int = 0
    """Tokens that are left out in front of each window."""
    beyond: int = 0
    """Tokens that there have to be behind it."""

    def __post_init__(self) -> None:
        for name in ("length", "stride", "count"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: allowed is 1 or more")
        if self.stride is not None and self.count is not None:
            raise ValueError("stride with count: windows are one after the other, or anywhere")
        if len(self.tokens.shape) != 1 or self._places < 1:
            wanted = self.length + self.first + self.beyond
            told = f"got {tuple(self.tokens.shape)}"
            raise ValueError(f"windows of {wanted} tokens are cut from one row of them, {told}")

    @classmethod
    def pairs(cls, tokens: Any, length: int, **settings: Any) -> tuple[Windows, Windows]:
        """(inputs, targets): the same windows twice, the second a token further on."""
        return cls(tokens, length, beyond=1, **settings), cls(tokens, length, first=1, **settings)

    @property
    def kind(self) -> Kind:
        """`length` tokens."""
        return Kind(self.dtype or rows_of(self.tokens).kind.dtype, (self.length,))

    def __len__(self) -> int:
        return self.count or (self._places - 1) // (self.stride or self.length) + 1

    def starts(self, indices: np.ndarray) -> np.ndarray:
        """int64: the token that each of these windows begins at."""
        if self.count is None:
            return indices * (self.stride or self.length)
        return (_mixed(indices, self.seed) % np.uint64(self._places)).astype(np.int64)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Copy those windows, as the dtype."""
        tokens = self.tokens
        array = tokens.numpy() if isinstance(tokens, torch.Tensor) else tokens
        windows = sliding_window_view(array, self.length)[self.starts(indices) + self.first]
        made = self.kind.seen(out)
        made.copy_(torch.from_numpy(windows))

    def __getstate__(self) -> dict[str, Any]:
        """With maps that are mapped again."""
        return packed(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(unpacked(state))

    @property
    def _places(self) -> int:
        return len(self.tokens) - self.length - self.first - self.beyond + 1


def _mixed(indices: np.ndarray, seed: int) -> np.ndarray:
    """uint64, as if drawn: output `index` of splitmix64 (Steele, Lea, Flood 2014) from a state that
    belongs to the seed."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95)
        mixed = state + (indices.astype(np.uint64) + np.uint64(1)) * ODD
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
