"""Rows that become floats where they are gathered, while they lie in the processor's cache.

A loop that converts its batches reads and writes each of them in memory once more for every
operation. Here some rows at a time are gathered, converted and scaled before the next ones are
touched: memory is read once, as uint8, and written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from fastloop.fastloader.columns import Kind
from fastloop.fastloader.rows import Rows, rows_of

PIECE_BYTES = 4 << 20
"""Of rows gathered and floats made of them: what the third cache holds for every thread. Pieces for
the second one (512 KiB) are half as fast with two threads, whose many short calls wait for each
other at the interpreter's lock: experiments/fastloader.md."""


@dataclass(frozen=True, eq=False)
class Converted:
    """Rows as floats, each times a factor and plus an offset; see converted()."""

    rows: Rows
    kind: Kind
    source_layout: Literal["CHW", "HWC"]
    factor: torch.Tensor | float
    """A number; or a tensor that fits _in_memory_order of what is delivered."""
    offset: torch.Tensor
    """One figure where the factor is a number, else of the factor's shape."""

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Convert those rows, a piece after the other."""
        if not self.kind.nbytes:
            return
        piece = max(1, PIECE_BYTES // (self.rows.kind.nbytes + self.kind.nbytes))
        for start in range(0, len(indices), piece):
            self._fill(indices[start : start + piece], out[start : start + piece])

    def _fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        # Allocated in each call: no two threads share it, and malloc gives the same memory again.
        gathered = np.empty((len(indices), self.rows.kind.nbytes), np.uint8)
        self.rows.fill(indices, gathered)
        part, dtype = self.kind.seen(out), _worked_in(self.kind.dtype)
        worked = part if part.dtype == dtype else torch.empty_like(part, dtype=dtype)
        # Not at once with the next step: of two dtypes, torch makes a copy of its own first.
        worked.copy_(self._as_delivered(self.rows.kind.seen(gathered)))
        if not isinstance(self.factor, torch.Tensor):
            if self.factor != 1 or self.offset != 0:
                torch.add(self.offset, worked, alpha=self.factor, out=worked)
        else:
            _in_memory_order(worked, self.kind.channels_last).mul_(self.factor).add_(self.offset)
        if worked is not part:
            part.copy_(worked)

    def _as_delivered(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.movedim(-1, 1) if self.source_layout == "HWC" else rows


def converted(  # noqa: PLR0913 - torch's and torchvision's own names for what may be asked for
    source: torch.Tensor | np.ndarray,
    dtype: torch.dtype = torch.float32,
    *,
    scale: float | None = None,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    source_layout: Literal["CHW", "HWC"] = "CHW",
    channels_last: bool = False,
) -> Converted:
    """A column of (source * scale - mean) / std in `dtype`, made as its rows are gathered.

    source: (num_samples, channels, ...) or, with source_layout="HWC", (num_samples, ..., channels),
    of integers, bools or floats; delivered are samples of (channels, ...). scale: 1/255 where it is
    None and the source uint8, else 1, as torchvision's ToDtype(scale=True) has it. mean, std: one
    figure for all, or one a channel. channels_last: (height, width, channels) in memory, torch's
    memory_format of that name.

    Equal to torchvision's to_dtype and normalize but for the rounding of floats: the figures are
    joined to one multiplication and one addition, done in float32 also where less is asked for.
    Raises ValueError for a dtype that is not of floats, for figures of another number than there
    are channels, for a std that is not above 0, and for a source that can't be one.
    """
    rows = rows_of(source)
    shape = rows.kind.shape
    if not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype}: allowed are torch.float32 and other floats")
    if rows.kind.dtype.is_complex:
        raise ValueError(f"a source of {rows.kind.dtype}: real numbers are converted")
    if source_layout not in ("CHW", "HWC"):
        raise ValueError(f"source_layout={source_layout}: allowed are CHW and HWC")
    if source_layout == "HWC":
        shape = (*shape[-1:], *shape[:-1])
    if channels_last and len(shape) != 3:
        raise ValueError(f"channels_last=True: samples have three dimensions, got {shape}")
    if scale is None:
        scale = 1 / 255 if rows.kind.dtype == torch.uint8 else 1.0
    means, stds = _figures("mean", mean, shape), _figures("std", std, shape)
    if min(stds) <= 0:
        raise ValueError(f"std={std}: allowed are figures above 0")
    kind = Kind(dtype, shape, channels_last)
    count = max(len(means), len(stds))
    pairs = list(zip(means * (count // len(means)), stds * (count // len(stds)), strict=True))
    offset = _spread([-one / width for one, width in pairs], kind)
    factor = scale / stds[0] if count == 1 else _spread([scale / width for _, width in pairs], kind)
    return Converted(rows, kind, source_layout, factor, offset)


def _figures(name: str, given: float | Sequence[float], shape: tuple[int, ...]) -> list[float]:
    figures = [float(one) for one in (given if isinstance(given, Sequence) else [given])]
    if len(figures) not in {1, *shape[:1]}:
        channels = shape[0] if shape else 0
        raise ValueError(f"{name}: {len(figures)} figures; one for all, or for {channels} channels")
    return figures


def _spread(figures: list[float], kind: Kind) -> torch.Tensor:
    """One figure as it is, those of the channels as _in_memory_order needs them."""
    channels = torch.tensor(figures, dtype=_worked_in(kind.dtype))
    if len(figures) == 1:
        return channels[0]
    return channels.repeat(kind.shape[2]) if kind.channels_last else channels[:, None]


def _in_memory_order(batch: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """(n, channels, the rest); channels last: (n, height, width * channels), because a loop over
    three channels would be the innermost otherwise."""
    if channels_last:
        return batch.permute(0, 2, 3, 1).flatten(2)
    return batch.flatten(2) if batch.dim() > 2 else batch.view(*batch.shape, 1)


def _worked_in(dtype: torch.dtype) -> torch.dtype:
    """float32 for less: a mean of 120 has errors of 0.3 in bfloat16."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
