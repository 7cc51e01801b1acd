"""Rows that are converted to floats as they are gathered, while they are in the processor's cache.

A loop that converts its batches reads and writes each of them in memory once more per operation.
Here a piece of rows is gathered, converted and scaled before the next piece is touched: memory is
read once, as uint8, and written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fastloop.fastloader.columns.array import ArrayColumn, array_column
from fastloop.fastloader.columns.column import SampleSpec
from fastloop.fastloader.columns.engine import SOURCE_TYPES, describe_rows, fill_rows

PIECE_BYTES = 4 << 20
"""Bytes of gathered rows plus their floats: the share of the third-level cache that each thread
has. Pieces for the second-level cache (512 KiB) are half as fast with two threads, whose many short
calls contend for the interpreter's lock: experiments/fastloader."""

NATIVE_TARGETS = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True, eq=False)
class ConvertedColumn:
    """Rows as floats, multiplied by a factor and shifted by an offset; see `converted`."""

    rows: ArrayColumn
    spec: SampleSpec
    source_layout: Literal["CHW", "HWC"]
    factor: torch.Tensor | float
    """A number, or a tensor that broadcasts to the batch in the shape of `_flatten_layout`."""
    offset: torch.Tensor
    """A scalar where the factor is a number, else of the factor's shape."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def fill(self, indices: np.ndarray, out: np.ndarray) -> None:
        """Write the converted rows at `indices` to `out`, piece by piece."""
        if not self.spec.nbytes or fill_rows(self, indices, out):
            return
        count = max(1, PIECE_BYTES // (self.rows.spec.nbytes + self.spec.nbytes))
        for start in range(0, len(indices), count):
            self._fill_piece(indices[start : start + count], out[start : start + count])

    def native_rows(self) -> dict[str, Any] | None:
        """The arguments of the native core's column; None for types that it does not convert."""
        rows, spec = self.rows, self.spec
        if spec.dtype not in NATIVE_TARGETS or rows.spec.dtype not in SOURCE_TYPES:
            return None
        arguments = describe_rows(rows.flat, len(rows), spec, rows.spec.nbytes)
        if arguments is None:
            return None
        channels, pixels = math.prod(spec.shape[:1]), math.prod(spec.shape[1:])
        factors, offsets = self._channel_numbers(channels)
        # one item a channel: both layouts are the same, and this one is faster
        is_vector = pixels == 1
        layout = self.source_layout == "HWC" or is_vector, spec.channels_last or is_vector
        return arguments | {
            "types": (SOURCE_TYPES[rows.spec.dtype], SOURCE_TYPES[spec.dtype]),
            "layout": (channels, pixels, *map(int, layout), len(factors)),
            "factor": factors,
            "offset": offsets,
        }

    def _channel_numbers(self, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """float32 factors and offsets: one, or one per channel."""
        if not isinstance(self.factor, torch.Tensor):
            return np.array([self.factor], np.float32), self.offset.reshape(1).numpy()
        return self.factor.flatten()[:channels].numpy(), self.offset.flatten()[:channels].numpy()

    def _fill_piece(self, indices: np.ndarray, out: np.ndarray) -> None:
        # allocated in each call: threads share no memory, and malloc returns the same block again
        gathered = np.empty((len(indices), self.rows.spec.nbytes), np.uint8)
        self.rows.fill(indices, gathered)
        result, dtype = self.spec.view_tensor(out), _compute_dtype(self.spec.dtype)
        floats = result if result.dtype == dtype else torch.empty_like(result, dtype=dtype)
        # not in one operation with the next: torch makes a temporary copy for mixed dtypes
        floats.copy_(self._as_delivered(self.rows.spec.view_tensor(gathered)))
        if not isinstance(self.factor, torch.Tensor):
            if self.factor != 1 or self.offset != 0:
                floats.mul_(self.factor).add_(self.offset)  # not fused: as the native core rounds
        else:
            _flatten_layout(floats, self.spec.channels_last).mul_(self.factor).add_(self.offset)
        if floats is not result:
            result.copy_(floats)

    def _as_delivered(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.movedim(-1, 1) if self.source_layout == "HWC" else rows


def converted(  # noqa: PLR0913 - the parameters have torch's and torchvision's own names
    source: torch.Tensor | np.ndarray,
    dtype: torch.dtype = torch.float32,
    *,
    scale: float | None = None,
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
    source_layout: Literal["CHW", "HWC"] = "CHW",
    channels_last: bool = False,
) -> ConvertedColumn:
    """A column of (source * scale - mean) / std in `dtype`, computed as its rows are gathered.

    Args:
        source: integers, bools or floats of shape (num_samples, channels, ...), or with
            source_layout="HWC" (num_samples, ..., channels). Samples are delivered as
            (channels, ...).
        dtype: a floating-point dtype.
        scale: None means 1/255 for a uint8 source and 1 for others, as torchvision's
            ToDtype(scale=True).
        mean, std: one number, or one per channel.
        channels_last: deliver samples in torch's memory_format channels_last.

    Equal to torchvision's to_dtype and normalize up to rounding: scale, mean and std are merged
    into one multiplication and one addition, computed in at least float32. Raises ValueError for an
    invalid dtype or layout, a std that is not positive, a mean or std whose length is not the
    number of channels, and a source that `FastLoader` would not accept.

    >>> images = converted(torch.zeros(10, 3, 8, 8, dtype=torch.uint8), mean=[0.5, 0.5, 0.5])
    >>> loader = FastLoader((images, torch.arange(10)), batch_size=5, shuffle=True)
    """
    rows = array_column(source)
    shape = rows.spec.shape
    if not dtype.is_floating_point:
        raise ValueError(f"dtype={dtype}: allowed are torch.float32 and other floats")
    if rows.spec.dtype.is_complex:
        raise ValueError(f"a source of {rows.spec.dtype}: real numbers are converted")
    if source_layout not in ("CHW", "HWC"):
        raise ValueError(f"source_layout={source_layout}: allowed are CHW and HWC")
    if source_layout == "HWC":
        shape = (*shape[-1:], *shape[:-1])
    if channels_last and len(shape) != 3:
        raise ValueError(f"channels_last=True: samples have three dimensions, got {shape}")
    if scale is None:
        scale = 1 / 255 if rows.spec.dtype == torch.uint8 else 1.0
    means, stds = _channel_values("mean", mean, shape), _channel_values("std", std, shape)
    if min(stds) <= 0:
        raise ValueError(f"std={std}: allowed are numbers above 0")
    spec = SampleSpec(dtype, shape, channels_last)
    count = max(len(means), len(stds))
    pairs = list(zip(means * (count // len(means)), stds * (count // len(stds)), strict=True))
    offset = _as_operand([-mean / std for mean, std in pairs], spec)
    factor = scale / stds[0] if count == 1 else _as_operand([scale / std for _, std in pairs], spec)
    return ConvertedColumn(rows, spec, source_layout, factor, offset)


def _channel_values(
    name: str, value: float | Sequence[float], shape: tuple[int, ...]
) -> list[float]:
    values = [float(number) for number in (value if isinstance(value, Sequence) else [value])]
    if len(values) not in {1, *shape[:1]}:
        channels = shape[0] if shape else 0
        allowed = f"one for all, or one for each of {channels} channels"
        raise ValueError(f"{name}: {len(values)} numbers; {allowed}")
    return values


def _as_operand(values: list[float], spec: SampleSpec) -> torch.Tensor:
    """A scalar for one value; for one per channel a tensor that fits `_flatten_layout`."""
    channels = torch.tensor(values, dtype=_compute_dtype(spec.dtype))
    if len(values) == 1:
        return channels[0]
    return channels.repeat(spec.shape[2]) if spec.channels_last else channels[:, None]


def _flatten_layout(batch: torch.Tensor, channels_last: bool) -> torch.Tensor:
    """View as (n, channels, rest), or in channels_last as (n, height, width * channels), where a
    broadcast over channels alone would have an inner loop of three elements."""
    if channels_last:
        return batch.permute(0, 2, 3, 1).flatten(2)
    return batch.flatten(2) if batch.dim() > 2 else batch.view(*batch.shape, 1)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """At least float32: in bfloat16 a mean of 120 is off by 0.3."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
