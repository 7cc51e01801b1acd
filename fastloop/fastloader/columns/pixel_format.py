"""The dtype, layout and scale of the pixels of crops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

DTYPES = torch.uint8, torch.float32, torch.bfloat16
"""Dtypes of the samples, by the native decoder's numbers."""
Statistics = tuple[Sequence[float], Sequence[float]]
"""(mean, std), a number for each channel."""


@dataclass(frozen=True)
class PixelFormat:
    """Dtype and layout of pixels: value * factor + offset of each channel, values of 0 to 255."""

    dtype: torch.dtype
    channels_last: bool
    factor: tuple[float, ...] = (1.0, 1.0, 1.0)
    offset: tuple[float, ...] = (0.0, 0.0, 0.0)

    @property
    def native(self) -> tuple:
        """The native decoder's arguments."""
        return DTYPES.index(self.dtype), self.channels_last, self.factor, self.offset

    def write(self, pixels: np.ndarray, sample: torch.Tensor) -> None:
        """Write (height, width, 3) uint8 pixels to a (3, height, width) sample."""
        values = torch.from_numpy(pixels).permute(2, 0, 1)
        if self.dtype != torch.uint8:
            factors = torch.tensor((self.factor, self.offset), dtype=torch.float32, device="cpu")
            factor, offset = factors.view(2, 3, 1, 1)
            values = values.float().mul_(factor).add_(offset)
        sample.copy_(values)


def pixel_format(
    normalize: Statistics | None, dtype: torch.dtype | None, layout: Literal["CHW", "channels_last"]
) -> PixelFormat:
    """The format for these settings of `Images`. Raises ValueError if one is invalid."""
    if dtype is None:
        dtype = torch.uint8 if normalize is None else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype}: allowed are {', '.join(map(str, DTYPES))}")
    if layout not in ("CHW", "channels_last"):
        raise ValueError(f"layout={layout!r}: allowed are 'CHW' and 'channels_last'")
    is_last = layout == "channels_last"
    if dtype == torch.uint8:
        if normalize is not None:
            raise ValueError("normalize with dtype=torch.uint8: normalized samples are floats")
        return PixelFormat(dtype, is_last)
    mean, std = ((0.0,) * 3, (1.0,) * 3) if normalize is None else normalize
    if not len(mean) == len(std) == 3 or min(std) <= 0:
        allowed = "(mean, std), three numbers each, and every std above 0"
        raise ValueError(f"normalize={normalize}: allowed are {allowed}")
    factor = tuple(1 / (255 * float(value)) for value in std)
    offset = tuple(-float(m) / float(s) for m, s in zip(mean, std, strict=True))
    return PixelFormat(dtype, is_last, factor, offset)
